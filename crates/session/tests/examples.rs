//! The examples do what they say.
#![allow(dead_code, missing_docs, reason = "their main functions")]

#[path = "../examples/echo.rs"]
mod echo;
#[path = "../examples/instructions.rs"]
mod instructions;
#[path = "../examples/key_value.rs"]
mod key_value;

use embar_session::{Address, Client, Flow, Handler, Message, Session};

fn any() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn echo_sends_back_what_it_gets() {
    let server = echo::serve(any()).unwrap();
    for text in ["hello", "", &"long ".repeat(10_000)] {
        assert_eq!(echo::ask(server.address(), text).unwrap(), text);
    }
    let address = server.address().to_string();
    echo::run(&["client", &address, "hello"]).unwrap();
    echo::run(&["client", &address]).unwrap_err();
}

#[test]
fn instructions_receives_what_it_sends() {
    for (what, received) in [("send", 0), ("receive", 1000), ("both", 1000)] {
        assert_eq!(instructions::run(what, 1000).unwrap(), received);
    }
    instructions::run("neither", 1000).unwrap_err();
}

#[test]
fn key_value_keeps_what_any_client_set() {
    let server = key_value::serve(any()).unwrap();
    let store = key_value::Store::connect(server.address()).unwrap();
    assert_eq!(store.get("colour").unwrap(), None);
    store.set("colour", b"blue").unwrap();
    store.set("empty", b"").unwrap();
    let another = key_value::Store::connect(server.address()).unwrap();
    assert_eq!(
        another.get("colour").unwrap().as_deref(),
        Some(&b"blue"[..])
    );
    assert_eq!(another.get("empty").unwrap().as_deref(), Some(&b""[..]));
    let address = server.address().to_string();
    key_value::run(&["set", &address, "shape", "round"]).unwrap();
    key_value::run(&["get", &address, "shape"]).unwrap();
    assert_eq!(store.get("shape").unwrap().as_deref(), Some(&b"round"[..]));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                let key = format!("thread {thread}");
                for round in 0..50_u8 {
                    store.set(&key, &[round]).unwrap();
                    assert_eq!(store.get(&key).unwrap(), Some(vec![round]));
                }
            });
        }
    });
}

#[test]
fn key_value_ends_sessions_that_send_anything_else() {
    struct Nothing;
    impl Handler for Nothing {
        fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
            Flow::Continue
        }
    }
    let server = key_value::serve(any()).unwrap();
    let store = key_value::Store::connect(server.address()).unwrap();
    let client = Client::new().unwrap();
    let session = client.connect(server.address(), Nothing).unwrap();
    session.send_with(99, 1, |to| to.fill(0)).unwrap();
    while session.closed().is_none() {
        std::thread::yield_now();
    }
    store.set("key", b"others go on").unwrap();
    drop(server);
    store.get("key").unwrap_err();
}
