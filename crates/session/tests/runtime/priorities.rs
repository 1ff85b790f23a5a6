//! Who is turned away first while a server fills up.

use std::sync::Arc;

use embar_memory::Buffer;
use embar_session::{
    Address, Client, CloseReason, Closed, MemoryBudget, Peer, Plain, Priority, Refusal, Reserve,
    Server, Session, Settings, Side,
};

use crate::support::{Echo, closed, loopback, message, recorder, small, until};

/// What a session of [`small`] settings takes.
const RINGS: usize = 32 << 10;

/// Half is kept from low priorities, a quarter from normal ones.
fn reserve() -> Reserve {
    Reserve::default().with(|reserve| {
        (reserve.from_low, reserve.from_normal) = (50, 25);
    })
}

/// As the greeting says.
fn priority(_: &Peer, greeting: &[u8]) -> Priority {
    match greeting {
        b"low" => Priority::Low,
        b"high" => Priority::High,
        b"bad" => panic!("as the test wants it"),
        _ => Priority::Normal,
    }
}

fn server(settings: Settings, address: Address) -> Server {
    let builder = Server::builder().settings(settings).listen(address);
    builder
        .prioritize(reserve(), priority)
        .start(|_| Echo)
        .unwrap()
}

fn client() -> Client {
    Client::with(Plain, small()).unwrap()
}

fn join(client: &Client, server: &Server, greeting: &str) -> Result<Session, Closed> {
    let connecting = client.open(server.address(), greeting.as_bytes(), recorder().0);
    connecting.wait()
}

/// It was refused for its priority.
fn is_kept_out(joined: Result<Session, Closed>) {
    let why = joined.unwrap_err();
    assert_eq!(why.reason, CloseReason::TooManySessions);
    assert_eq!(why.text, "what is left is for others");
}

fn refused(server: &Server) -> Vec<(Refusal, u64)> {
    server.monitor().refused_by_reason()
}

#[test]
fn the_last_places_are_for_higher_priorities() {
    let settings = small().with(|settings| settings.max_sessions = 4);
    let (server, client) = (server(settings, loopback()), client());
    let low = [(); 2].map(|()| join(&client, &server, "low").unwrap());
    is_kept_out(join(&client, &server, "low"));
    // Whose greeting cannot be understood is not worth more.
    is_kept_out(join(&client, &server, "bad"));
    let normal = join(&client, &server, "").unwrap();
    is_kept_out(join(&client, &server, ""));
    let high = join(&client, &server, "high").unwrap();
    let why = join(&client, &server, "high").unwrap_err();
    assert_eq!(
        (why.reason, why.text.as_str()),
        (CloseReason::TooManySessions, "")
    );
    assert_eq!(
        refused(&server),
        [(Refusal::TooManySessions, 1), (Refusal::LowPriority, 3)]
    );

    // Nobody's session ended for another one, and who left made room for those of its kind.
    let priorities: Vec<_> = server.sessions().iter().map(Session::priority).collect();
    assert_eq!(
        priorities,
        [
            Priority::Low,
            Priority::Low,
            Priority::Normal,
            Priority::High
        ]
    );
    for session in low.iter().chain([&normal, &high]) {
        session.close();
    }
    until("they left", || server.stats().sessions == 0);
    assert!(join(&client, &server, "low").is_ok());
}

#[test]
fn the_last_memory_is_for_higher_priorities() {
    let budget = MemoryBudget::new(4 * RINGS);
    let settings = small().with(|settings| settings.budget = Some(budget.clone()));
    let (server, client) = (server(settings, loopback()), client());
    let low = [(); 2].map(|()| join(&client, &server, "low").unwrap());
    is_kept_out(join(&client, &server, "low"));
    // What a program holds itself counts, too.
    let held = budget.try_reserve(RINGS).unwrap();
    is_kept_out(join(&client, &server, ""));
    let high = join(&client, &server, "high").unwrap();
    assert!(join(&client, &server, "high").is_err());
    assert_eq!(
        refused(&server),
        [(Refusal::LowPriority, 2), (Refusal::OutOfMemory, 1)]
    );

    // Rings that nobody uses keep nobody out.
    for session in low.iter().chain([&high]) {
        session.close();
    }
    until("they left", || server.stats().sessions == 0);
    drop(held);
    assert!(join(&client, &server, "low").is_ok());
}

#[test]
fn bodies_of_lower_priorities_leave_the_last_memory_to_sessions_of_higher_ones() {
    const BODY: usize = 200 << 10;
    let budget = MemoryBudget::new(512 << 10);
    let settings = small().with(|settings| {
        settings.budget = Some(budget.clone());
        // All of it, as far as bodies go.
        settings.body_budget_bytes = Some(budget.limit());
    });
    let (server, client) = (server(settings, loopback()), client());
    // Of the half that is open to low priorities, something else has a part.
    let _held = budget.try_reserve(100 << 10).unwrap();
    let (handler, seen) = recorder();
    let low = client.open(server.address(), b"low", handler);
    let low = low.wait().unwrap();
    let body = || Arc::new(Buffer::from(vec![7; BODY]));
    low.send_body(1, b"", body()).unwrap();
    let why = closed(&seen);
    assert_eq!((why.by, why.reason), (Side::Peer, CloseReason::OutOfMemory));
    assert!(why.text.contains("memory budget"), "{why}");

    let high = join(&client, &server, "high").unwrap();
    high.send_body(1, b"", body()).unwrap();
    until("it came", || server.stats().bytes_received > BODY as u64);
    assert!(high.closed().is_none());
}

#[test]
fn a_budget_for_one_session_keeps_nobody_out_of_an_empty_server() {
    let budget = MemoryBudget::new(RINGS + RINGS / 8);
    let settings = small().with(|settings| settings.budget = Some(budget));
    let (server, client) = (server(settings, loopback()), client());
    for greeting in ["", "low", "high"] {
        let session = join(&client, &server, greeting).unwrap();
        session.close();
        until("it left", || server.stats().sessions == 0);
    }
}

#[test]
fn the_last_memory_of_bodies_is_for_those_of_higher_priorities() {
    let settings = small().with(|settings| settings.body_budget_bytes = Some(1 << 20));
    let builder = Server::builder().settings(settings).listen(loopback());
    let handler = || recorder().0;
    let server = builder
        .prioritize(reserve(), priority)
        .start(move |_| handler());
    let (server, client) = (server.unwrap(), client());
    let body = || Arc::new(Buffer::from(vec![7; 600 << 10]));

    let (handler, seen) = recorder();
    let low = client
        .open(server.address(), b"low", handler)
        .wait()
        .unwrap();
    low.send_body(1, b"", body()).unwrap();
    let why = closed(&seen);
    assert_eq!((why.by, why.reason), (Side::Peer, CloseReason::OutOfMemory));

    let high = join(&client, &server, "high").unwrap();
    high.send_body(1, b"", body()).unwrap();
    until("it came", || {
        server.stats().bytes_received > 600 << 10 && server.stats().sessions == 1
    });
    assert!(high.closed().is_none());
}

#[test]
fn a_reserve_that_cannot_be_is_an_error_at_the_start() {
    let reserve = Reserve::default().with(|reserve| reserve.from_normal = 30);
    let builder = Server::builder().listen(loopback());
    let started = builder.prioritize(reserve, priority).start(|_| Echo);
    assert!(started.err().unwrap().to_string().contains("reserve"));
}

#[test]
fn without_priorities_nothing_is_kept() {
    let settings = small().with(|settings| settings.max_sessions = 1);
    let server = crate::support::echo_server(settings, loopback());
    let client = client();
    let (handler, seen) = recorder();
    let session = client
        .open(server.address(), b"low", handler)
        .wait()
        .unwrap();
    assert_eq!(session.priority(), Priority::Normal);
    session.send_with(1, 1, |buf| buf.fill(3)).unwrap();
    assert_eq!(message(&seen).1, [3]);
}
