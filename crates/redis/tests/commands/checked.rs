//! A client that compares what methods say of a command with what is known of it.

use embar_redis::command::{Class, Command, Route};
use embar_redis::commands::Commands;
use embar_redis::resp::{FromReply, View, parse};
use embar_redis::{Client, Cmd, Request, cmd};
use std::ops::Deref;

#[derive(Clone, Copy)]
pub struct Checked<'c>(pub &'c Client);

impl Deref for Checked<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.0
    }
}

impl<'c> Commands for Checked<'c> {
    type Output<C: Command, R: FromReply> = Request<'c, C, R>;

    fn execute<C: Command, R: FromReply>(self, command: C) -> Self::Output<C, R> {
        let known = built_from_words(&command);
        assert_eq!(command.route(), known.route(), "{known:?}");
        // Redis calls commands without a key readers only if they look at keys.
        let keyless = [Route::Any, Route::AllPrimaries, Route::AllNodes];
        if !keyless.contains(&known.route()) || known.class() == Class::Read {
            assert_eq!(command.class(), known.class(), "{known:?}");
        }
        assert_eq!(known.refused(), None);
        self.0.send(command)
    }
}

fn built_from_words(command: &impl Command) -> Cmd {
    let mut bytes = vec![0; command.encoded_len()];
    command.encode(&mut bytes);
    let (View::Array(words), len) = parse(&bytes).unwrap() else {
        panic!("a command is an array")
    };
    assert_eq!(len, bytes.len());
    let mut words = words.map(|word| match word {
        View::Bulk(word) => word,
        other => panic!("{other:?} in a command"),
    });
    let name = words.next().expect("a command has a name");
    cmd(std::str::from_utf8(name).unwrap()).args(words)
}
