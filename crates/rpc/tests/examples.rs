//! The example does what it says.
#![allow(dead_code, missing_docs, reason = "its main function")]

#[path = "../examples/greeter/main.rs"]
mod greeter;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use embar_rpc::session::{self, Address};
use embar_rpc::{Call, Reply, Router, Server, Sink, Status};
use greeter::generated::greeter::v1::{
    Greeter, GreeterServer, HelloReply, HelloReplyView, HelloRequestView,
};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// Arguments of a greeter that is a process of its own.
const ARGUMENTS: &str = "EMBAR_TEST_GREETER";

fn any() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

/// Not a test by itself: the program as the others start it.
#[test]
fn greeter_process() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let arguments = ["greeter"].into_iter().chain(arguments.split(' '));
    let command = greeter::Command::parse_from(arguments);
    let code = greeter::end(greeter::run(command));
    std::process::exit(code.into());
}

/// A greeter in a process of its own; killed with the test.
struct Program {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(arguments: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["greeter_process", "--exact", "--nocapture"])
            .env(ARGUMENTS, arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// A server, and where it listens.
    fn server() -> (Self, String) {
        let mut server = Self::start("server 127.0.0.1:0");
        let line = server.until("listening on ");
        let (address, _) = line.split_once(';').unwrap();
        (server, address.to_owned())
    }

    /// What comes behind these words in the first line that has them.
    fn until(&mut self, words: &str) -> String {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        let found = lines.find_map(|line| Some(line.split_once(words)?.1.to_owned()));
        found.unwrap_or_else(|| panic!("no {words:?}"))
    }

    /// Its exit code.
    fn ended(&mut self) -> Option<i32> {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
}

#[test]
fn the_program_serves_and_calls() {
    let (_server, address) = Program::server();
    let mut once = Program::start(&format!("hello {address} Ada"));
    once.until("Hello, Ada!");
    assert_eq!(once.ended(), Some(0));
    let mut all = Program::start(&format!("hellos {address} Ada"));
    all.until("Moin, Ada!");
    assert_eq!(all.ended(), Some(0));
    assert!(greeter::Command::try_parse_from(["greeter", "hello", &address]).is_err());
}

#[test]
fn load_checks_every_answer_and_says_how_fast_they_came() {
    let (_server, address) = Program::server();
    let mut load = format!("load {address} --sessions 2 --in-flight 8 --calls 500");
    for made in [500, 7] {
        let mut counted = Program::start(&load);
        counted.until("2 sessions are open");
        let calls = counted.until("calls    ");
        assert_eq!(calls, format!("{made} answered, 0 wrong, 0 failed, 0 lost"));
        let rate = counted.until("rate     ");
        let rate: f64 = rate.strip_suffix(" calls/s").unwrap().parse().unwrap();
        assert!(rate > 0.0);
        let times = counted.until("latency  ");
        let [half, most, longest] = micros(&times);
        assert!(0 < half && half <= most && most <= longest, "{times}");
        assert_eq!(counted.ended(), Some(0));
        // Fewer calls than could be in flight.
        load = load.replace("500", "7");
    }
    let mut timed = Program::start(&format!("load {address} --for 0"));
    timed.until("0 answered, 0 wrong, 0 failed, 0 lost");
    assert_eq!(timed.ended(), Some(0));
}

/// Of `P50 1 us, P99 2 us, max 3 us`.
fn micros(line: &str) -> [u64; 3] {
    let words = line.split([' ', ',']);
    let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().unwrap()
}

#[test]
fn load_ends_and_says_why_when_its_server_is_killed() {
    let (mut server, address) = Program::server();
    let mut load = Program::start(&format!(
        "load {address} --sessions 2 --in-flight 8 --for 3600"
    ));
    // It is in the middle of it.
    while load.until("so far: ") == "0 answers" {}
    server.child.kill().unwrap();
    let calls = load.until("calls    ");
    // Each caller had one in flight.
    let answered = calls.strip_suffix(" answered, 0 wrong, 16 failed, 0 lost");
    assert!(answered.is_some_and(|it| it != "0"), "{calls}");
    assert!(load.until("failed   ").starts_with("16 Unavailable: "));
    assert_eq!(load.ended(), Some(1));
    // And when it is not there at all.
    assert_eq!(Program::start(&format!("load {address}")).ended(), Some(1));
}

/// Greets most as it should, one by another's name, and another one not at all.
struct Careless;

impl Greeter for Careless {
    fn say_hello(&self, _: &Call, request: HelloRequestView<'_>, reply: Reply<HelloReply>) {
        let message = match request.name.rsplit_once(' ') {
            Some((_, "3")) => "Hello, you!".to_owned(),
            Some((_, "5")) => return reply.fail(Status::not_found("nobody of that name")),
            _ => format!("Hello, {}!", request.name),
        };
        reply.send_view(&HelloReplyView { message: &message });
    }

    fn say_hellos(&self, _: &Call, _: HelloRequestView<'_>, items: Sink<HelloReply>) {
        items.finish(Err(Status::unimplemented("one hello is enough")));
    }
}

#[test]
fn load_finds_answers_that_are_wrong_and_names_what_failed() {
    let router = Router::new().add_service(GreeterServer::new(Careless));
    let server: Server = router
        .start(session::Server::builder().listen(any()))
        .unwrap();
    let mut load = Program::start(&format!(
        "load {} --sessions 1 --in-flight 1 --calls 10",
        server.address()
    ));
    assert_eq!(
        load.until("calls    "),
        "8 answered, 1 wrong, 1 failed, 0 lost",
        "of ten, numbered from 0"
    );
    assert!(load.until("wrong    ").contains("Hello, you!"));
    let failed = load.until("failed   ");
    assert_eq!(failed, "1 NotFound: nobody of that name");
    assert_eq!(load.ended(), Some(1));
}
