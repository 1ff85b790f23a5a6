//! `embar top`: a live view of a cluster in the terminal.

mod keys;
mod look;
mod poll;
mod sheet;
mod view;

use std::env;
use std::io::{IsTerminal, stdin, stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use embar_client::Transport;
use embar_console::connect::Connector;
use embar_console::progress::Silent;
use embar_console::size::parse_span;
use embar_diagnose::picture::Picture;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::keys::Choice;
use self::look::Look;
use self::poll::{Looker, Poll};
use self::sheet::{Sheet, Tab};
use self::view::{Scene, draw};
use crate::connect::{DEFAULT_BOOTSTRAP, tell_profiles};
use crate::context::Context;

/// How soon a key is heard, a new look drawn, and a signal noticed.
const TICK: Duration = Duration::from_millis(100);

/// Watch a cluster: brokers, topics, connections, stages, and what limits
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar top
  embar top --bootstrap 10.0.0.7:9400 --interval 5s
  embar top --once                       one look as text, and end; so it is where no terminal is
  embar --json top

It asks brokers for their counters, and looks at the processes and connections of brokers and
clients that are this user's and on this machine, as `embar diagnose --attach` does. Brokers that
do not answer within 2 s are left out of a look. Keys: 1 to 5 and Tab for another view, p to hold
still, + and - for the interval, ? for all keys, q to end.

JSON, one object: seconds, head, sequencer, brokers[] with id, role, state, address, rates (null, or
connections, paused_connections, bytes_in_per_s, bytes_out_per_s, messages_per_s, batches_per_s,
refused_per_s, log_used, cpus, uptime_s), topics[] with name, order, brokers, first, next, bytes,
messages_per_s; connections[] with broker, client, bytes_per_s, round_trip_us, window_full,
send_buffer_full, resent; stages[] with of, stage, share, times_per_s, avg_ns; diagnosis (as of
`embar diagnose`), cores, busy. Shares are 0 to 1")]
pub struct TopArgs {
    /// Address of any broker of the cluster
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "EMBAR_BOOTSTRAP",
        default_value = DEFAULT_BOOTSTRAP
    )]
    bootstrap: String,
    /// How long each look takes
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_span)]
    interval: Duration,
    /// Print one look, and end
    #[arg(long)]
    once: bool,
}

/// Shows it until the user ends it.
pub fn run(args: &TopArgs, context: &Context) -> Result<()> {
    // This is a client itself: who asks it is told that it has nothing to tell.
    tell_profiles(context);
    // By TCP, whose other end says which process a broker is.
    let connector = Connector::new(args.bootstrap.as_str(), context.work.progress.clone());
    let connector = connector.by(Transport::Tcp);
    let choice = Choice::new(args.interval);
    let is_seen = stdout().is_terminal() && stdin().is_terminal();
    if args.once || context.output.is_json() || !is_seen {
        let interrupt = &context.work.interrupt;
        let look = Looker::new(connector).look(choice.interval, None, interrupt)?;
        context.output.json(&look)?;
        return say(&look, context);
    }
    ensure!(
        env::var_os("TERM").is_none_or(|it| it != "dumb"),
        "this terminal (TERM=dumb) has no screen to draw on: `embar top --once` prints one look"
    );
    // Remarks would be written over what is drawn, which says itself who does not answer.
    let connector = Connector::new(args.bootstrap.as_str(), Arc::new(Silent)).by(Transport::Tcp);
    let mut looker = Looker::new(connector);
    let poll = Poll::start(choice.interval, move |interval, before, stop| {
        looker.look(interval, before, stop)
    })?;
    // It gives the terminal back also when this panics, and not where it fails halfway.
    let terminal = ratatui::try_init().context("cannot use this terminal");
    let shown = terminal.and_then(|mut it| show(&mut it, args, choice, &poll, context));
    ratatui::restore();
    shown
}

fn show(
    terminal: &mut DefaultTerminal,
    args: &TopArgs,
    mut choice: Choice,
    poll: &Poll,
    context: &Context,
) -> Result<()> {
    while !choice.is_over {
        context.work.interrupt.check()?;
        let (look, trouble) = {
            let mut news = poll.news()?;
            (news.interval, news.is_paused) = (choice.interval, choice.is_paused);
            (news.look.clone(), news.trouble.clone())
        };
        let trouble = trouble.map(|(since, why)| {
            format!(
                "no answer for {:.0} s: {why}",
                since.elapsed().as_secs_f64()
            )
        });
        let scene = Scene {
            look: look.as_deref(),
            address: &args.bootstrap,
            trouble: trouble.as_deref(),
            choice: &choice,
            colors: context.output.paint().is_on(),
            now: Instant::now(),
        };
        let mut last = 0;
        terminal.draw(|frame| last = draw(frame, &scene))?;
        choice.from = choice.from.min(last);
        if event::poll(TICK)?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            choice.press(key);
        }
    }
    Ok(())
}

/// One look as text.
fn say(look: &Look, context: &Context) -> Result<()> {
    let output = &context.output;
    for tab in Tab::ALL.into_iter().filter(|tab| *tab != Tab::Findings) {
        let sheet = Sheet::of(look, tab);
        match sheet.rows.is_empty() {
            true => output.say(format_args!("{}\n", sheet.none))?,
            false => output.say(format_args!("{}\n", sheet.table()))?,
        }
    }
    output.say(Picture(&look.diagnosis))?;
    for (at, finding) in look.findings().iter().enumerate() {
        let [head, evidence, remedy] = sheet::lines(at + 1, finding);
        output.say(format_args!("{head}\n   {evidence}\n   remedy: {remedy}\n"))?;
    }
    for missing in look.missing() {
        output.say(format_args!("not read: {}: {}", missing.what, missing.why))?;
    }
    Ok(())
}
