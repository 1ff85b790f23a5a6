use embar_redis::command::Command;
use embar_redis::{Client, Cmd, Error, cmd};
use embar_redis_servers::{Options, Server};

fn of(line: &str) -> Cmd {
    let mut words = line.split(' ');
    cmd(words.next().expect("a name")).args(words)
}

#[tokio::test]
async fn what_others_would_feel_is_refused() {
    let server = Server::start(&Options::default()).unwrap();
    let client = Client::connect(&format!("redis://{}", server.address()))
        .await
        .unwrap();
    for (line, wanted, hint) in [
        ("BLPOP k 0", "BLPOP", "Client::dedicated"),
        (
            "xread count 1 block 0 STREAMS s $",
            "XREAD BLOCK",
            "Client::dedicated",
        ),
        ("SUBSCRIBE c", "SUBSCRIBE", "Client::subscriber"),
        ("MULTI", "MULTI", "Client::transaction"),
        ("select 1", "SELECT", "redis://host/1"),
        ("CLIENT REPLY OFF", "CLIENT REPLY", "Client::dedicated"),
        ("CLIENT SETNAME x", "CLIENT SETNAME", "client_name"),
    ] {
        let error = client.send::<_, ()>(of(line)).await.expect_err(line);
        assert!(!error.may_have_executed());
        assert!(error.to_string().contains(hint), "{error}");
        assert!(
            matches!(error, Error::NotShared { command, .. } if command == wanted),
            "{error}"
        );
    }
    let commands = server.command(&["INFO", "commandstats"]).unwrap();
    assert!(
        !commands.contains("cmdstat_multi"),
        "it was sent: {commands}"
    );
}

#[test]
fn only_commands_that_affect_others_are_refused() {
    for line in [
        "XREAD COUNT 1 STREAMS block 0",
        "XREADGROUP GROUP g c STREAMS block >",
        "XREADGROUP GROUP block streams STREAMS s >",
        "CLIENT LIST",
        "CLIENT",
        "SCRIPT LOAD x",
        "SHUTDOWN NOSAVE",
        "GET BLPOP",
        "PUBLISH c m",
    ] {
        assert_eq!(of(line).refused(), None, "{line}");
    }
    let blocking = cmd("BLPOP").key("k").arg(0);
    assert!(matches!(
        blocking.refused(),
        Some(Error::NotShared {
            command: "BLPOP",
            ..
        })
    ));
}
