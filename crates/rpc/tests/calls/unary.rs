//! Calls with one reply.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use embar_rpc::session::{self, Admin, Settings};
use embar_rpc::{Code, Metadata, Router, RouterError, Status};

use crate::support::proto::{OddClient, OtherClient, TestingServer, TextView};
use crate::support::{LONG, Pair, block_on, loopback, number, obedient, text, until};

#[test]
fn a_reply_comes_back_to_threads_and_to_tasks() {
    let pair = Pair::new();
    let long = "long ".repeat(10_000);
    for what in ["hello", "", long.as_str()] {
        assert_eq!(pair.echo(what), what);
        let request = text(what);
        let reply = block_on(async { pair.testing.echo(&request).await }).unwrap();
        assert_eq!(reply.to_message().unwrap().text, what);
    }
    let view = TextView {
        text: "of a view",
        ..Default::default()
    };
    let reply = pair.testing.echo_view(&view).wait().unwrap();
    assert_eq!(reply.view().unwrap().text, "of a view");
    assert!(!reply.as_bytes().is_empty());
    drop(reply);
    pair.until_quiet();
}

#[test]
fn calls_move_between_threads() {
    fn is_send<T: Send>(what: T) -> T {
        what
    }
    let pair = Pair::new();
    let (request, number) = (text("hello"), number(3, 0));
    let call = is_send(pair.testing.echo(&request));
    let mut items = is_send(pair.testing.count(&number));
    let reply = thread::scope(|scope| scope.spawn(|| call.wait()).join().unwrap());
    assert_eq!(is_send(reply).unwrap().view().unwrap().text, "hello");
    let next = is_send(items.next());
    assert_eq!(block_on(next).unwrap().unwrap().view().unwrap().number, 1);
    drop(items);
    pair.until_quiet();
}

#[test]
fn many_threads_share_a_channel() {
    let pair = Pair::new();
    thread::scope(|scope| {
        for thread in 0..8 {
            let pair = &pair;
            scope.spawn(move || {
                for round in 0..200 {
                    let what = format!("{thread} {round}");
                    assert_eq!(pair.echo(&what), what);
                }
            });
        }
    });
    pair.until_quiet();
}

#[test]
fn one_thread_has_many_calls_in_flight() {
    let pair = Pair::new();
    let requests: Vec<_> = (0..100).map(|index| text(&index.to_string())).collect();
    let mut calls: Vec<_> = requests
        .iter()
        .map(|request| pair.testing.echo(request))
        .collect();
    for call in &mut calls {
        call.start().unwrap();
    }
    for (call, request) in calls.into_iter().zip(&requests).rev() {
        let reply = call.wait().unwrap().to_message().unwrap();
        assert_eq!(reply.text, request.text);
    }
    pair.until_quiet();
}

#[test]
fn replies_come_later_and_from_other_threads() {
    let pair = Pair::new();
    let request = text("later");
    let reply = pair.testing.obey(&request).timeout(LONG).wait().unwrap();
    assert_eq!(reply.view().unwrap().text, "later");
}

#[test]
fn errors_say_what_the_method_said() {
    let pair = Pair::new();
    let status = pair.error("fail");
    assert_eq!(
        status,
        Status::not_found("no such thing").with_details([1, 2, 3])
    );
    assert!(status.may_have_run());
    pair.until_quiet();
}

#[test]
fn a_method_that_panics_or_forgets_its_reply_ends_that_call_alone() {
    let pair = Pair::new();
    let status = pair.error("panic");
    assert_eq!(status, Status::internal("the method panicked"));
    let status = pair.error("drop");
    assert_eq!(status.code(), Code::Internal);
    assert!(status.text().contains("without an answer"), "{status}");
    pair.until_quiet();
    let methods = pair.server.stats().methods();
    let obey = methods
        .iter()
        .find(|method| method.method.ends_with("/Obey"));
    assert_eq!(obey.unwrap().ended, [(Code::Internal, 2)]);
    assert_eq!(pair.server.sessions().stats().panics, 0);
}

#[test]
fn unknown_methods_are_unimplemented() {
    let pair = Pair::new();
    let other = OtherClient::new(pair.channel.clone());
    let request = text("hello");
    let status = other.echo(&request).wait().unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    let odd = OddClient::new(pair.channel.clone());
    let status = odd.r#type(&request).wait().unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    let status = odd.new_(&request).wait_next().unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(pair.server.stats().unknown(), 3);
    pair.until_quiet();
}

#[test]
fn replies_that_are_too_long_say_so() {
    let pair = Pair::new();
    let status = pair.error("big");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.text().contains("the reply has"), "{status}");
    let request = text(&"x".repeat(1 << 20));
    let status = pair.testing.echo(&request).wait().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(!status.may_have_run());
    pair.until_quiet();
    let obey = &pair.server.stats().methods()[1];
    assert_eq!(obey.ended, [(Code::ResourceExhausted, 1)]);
}

#[test]
fn interceptors_look_at_calls_in_their_order() {
    let checks = |call: &embar_rpc::Call| {
        assert!(call.peer().tcp().is_some() && call.time_left().is_none_or(|left| !left.is_zero()));
        match call.metadata().get("token") {
            Some(b"refused") => Err(Status::unauthenticated(call.method().path())),
            Some(b"panic") => panic!("as the test wants it"),
            _ => Ok(()),
        }
    };
    let never = |call: &embar_rpc::Call| match call.metadata().get("token") {
        Some(b"refused") => panic!("another one refused it"),
        _ => Ok(()),
    };
    let pair = Pair::with(
        |router| router.intercept(checks).intercept(never),
        Default::default(),
    );
    let request = text("token");
    let ask = |token: &str| {
        let call = pair.testing.obey(&request).metadata("token", token);
        call.unwrap().timeout(LONG).wait()
    };
    assert_eq!(ask("mine").unwrap().view().unwrap().text, "mine");
    let status = ask("refused").unwrap_err();
    assert_eq!(
        status,
        Status::unauthenticated("embar.rpc.testing.v1.Testing/Obey")
    );
    assert_eq!(ask("panic").unwrap_err().code(), Code::Internal);

    let channel = pair.channel.intercept(|_, metadata: &mut Metadata| {
        metadata
            .add("token", "first")
            .map_err(|error| Status::internal(error.to_string()))
    });
    let channel = channel.intercept(|method, metadata| {
        assert_eq!(metadata.get_text("token"), Some("first"));
        match method.path().ends_with("/Echo") {
            true => Err(Status::permission_denied("not from here")),
            false => Ok(()),
        }
    });
    let testing = crate::support::proto::TestingClient::new(channel);
    let reply = testing.obey(&request).wait().unwrap();
    assert_eq!(reply.view().unwrap().text, "first");
    let status = testing.echo(&request).wait().unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(!status.may_have_run());
    drop(reply);
    pair.until_quiet();
}

#[test]
fn a_service_is_added_once() {
    let service = || TestingServer::new(obedient().0);
    let builder = session::Server::builder().listen(loopback());
    let error = Router::new()
        .add_service(service())
        .add_service(service())
        .start(builder);
    let Err(RouterError::Collision { first, second, .. }) = error else {
        panic!("it starts");
    };
    assert_eq!(first, second);
}

#[test]
fn figures_are_those_of_each_method() {
    let pair = Pair::new();
    for _ in 0..3 {
        pair.echo("hello");
    }
    pair.error("fail");
    until("the last call is counted", || {
        pair.server.stats().methods()[1].in_flight == 0
    });
    let methods = pair.server.stats().methods();
    let names: Vec<_> = methods.iter().map(|method| method.method).collect();
    let path = |name| format!("embar.rpc.testing.v1.Testing/{name}");
    assert_eq!(names, ["Echo", "Obey", "Count"].map(path));
    assert_eq!(methods[0].ended, [(Code::Ok, 3)]);
    assert_eq!((methods[0].calls, methods[0].in_flight), (3, 0));
    assert!(methods[0].time > std::time::Duration::ZERO);
    assert_eq!(methods[1].ended, [(Code::NotFound, 1)]);
    let text = pair.server.stats().open_metrics();
    let line = format!(
        "embar_rpc_calls_total{{method=\"{}\",code=\"Ok\"}} 3\n",
        path("Echo")
    );
    assert!(text.contains(&line), "{text}");
    let stats = pair.server.stats();
    let admin = Admin::listen(loopback())
        .watch("calls", pair.server.sessions().monitor())
        .add_metrics(move || stats.open_metrics())
        .start()
        .unwrap();
    let mut stream = TcpStream::connect(admin.address().to_string()).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut served = String::new();
    stream.read_to_string(&mut served).unwrap();
    assert!(
        served.contains(&line) && served.contains("embar_session_"),
        "{served}"
    );
    assert!(served.ends_with("# EOF\n") && served.matches("# EOF").count() == 1);
    assert_eq!(pair.channel.stats().calls, 4);
}

#[test]
fn sessions_of_another_protocol_are_refused() {
    let pair = Pair::new();
    let plain = session::Client::with(session::Plain, Settings::default()).unwrap();
    let refused = embar_rpc::Channel::connect(&plain, pair.server.address()).unwrap_err();
    assert_eq!(refused.reason, session::CloseReason::Protocol);
}
