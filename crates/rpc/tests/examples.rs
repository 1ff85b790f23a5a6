//! The example does what it says.
#![allow(dead_code, missing_docs, reason = "its main function")]

#[path = "../examples/greeter.rs"]
mod greeter;

use embar_rpc::session::Address;

fn any() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn the_greeter_greets_in_both_styles() {
    let handlers = greeter::serve(any()).unwrap();
    // An executor of the simplest kind: a thread for each task.
    let futures = greeter::serve_async(any(), |future| {
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            runtime.unwrap().block_on(future);
        });
    });
    let futures = futures.unwrap();
    for server in [&handlers, &futures] {
        let hello = greeter::hello(server.address(), "Ada").unwrap();
        assert_eq!(hello, "Hello, Ada!");
        let hellos = greeter::hellos(server.address(), "Ada").unwrap();
        let words = ["Hello", "Bonjour", "Hola", "Moin"];
        assert_eq!(hellos, words.map(|word| format!("{word}, Ada!")));
    }
    let error = greeter::hello(handlers.address(), "").unwrap_err();
    assert_eq!(error.to_string(), "InvalidArgument: say who you are");
    let address = handlers.address().to_string();
    greeter::run(&["hello", &address, "Ada"]).unwrap();
    greeter::run(&["hellos", &address, "Ada"]).unwrap();
    greeter::run(&["hello", &address]).unwrap_err();
}
