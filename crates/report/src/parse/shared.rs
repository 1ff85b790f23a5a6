//! What several kinds have: profiles of stages, costs, comparisons, trials.

use embar_meter::Better;

use super::node::Node;
use crate::Error;
use crate::picture::ratios::{self, Claim, Interval, Line};
use crate::picture::shares::{self, Share};
use crate::picture::trials::Trials;
use crate::section::{Block, Fact};
use crate::table::Table;
use crate::words;

/// Where a pipeline's time went, for each profile that is there.
pub(super) fn profiles(root: &Node<'_>) -> Result<Vec<Block>, Error> {
    let names = [
        ("publisher_profile", "Stages of the publisher"),
        ("broker_profile", "Stages of the brokers"),
        ("subscriber_profile", "Stages of the subscriber"),
    ];
    let mut blocks = Vec::new();
    for (field, title) in names {
        if let Some(profile) = root.object(field)? {
            blocks.extend(stages(&profile, title)?);
        }
    }
    Ok(blocks)
}

fn stages(profile: &Node<'_>, title: &str) -> Result<Vec<Block>, Error> {
    let mut rows = Vec::new();
    for stage in profile.objects("stages")? {
        let micros = |ns: Option<f64>| ns.map(|ns| words::micros(ns / 1e3)).unwrap_or_default();
        let (name, share) = (stage.needed_text("name")?, stage.needed("share")?);
        let count = stage.number("count")?.map(words::whole);
        let cells = vec![
            name.clone(),
            words::percent_fine(share),
            micros(stage.number("total_ns")?),
            count.unwrap_or_default(),
            micros(stage.number("avg_ns")?),
        ];
        rows.push((name, share, cells));
    }
    let largest = rows.iter().map(|it| it.1).fold(0.0, f64::max);
    let Some(first) = rows.iter().find(|it| it.1 == largest && largest > 0.0) else {
        return Ok(Vec::new());
    };
    let description = format!(
        "Share of the pipeline's time in each stage. The largest is {} with {}.",
        first.0,
        words::percent(first.1)
    );
    let shares = rows.into_iter().map(|(label, share, cells)| Share {
        value: match share == largest {
            true => format!("{} ◀ most", words::percent(share)),
            false => words::percent(share),
        },
        label,
        share,
        hollow: 0.0,
        is_marked: share == largest,
        cells,
    });
    let columns = ["stage", "#share", "#total", "#count", "#mean"];
    let picture = shares::picture(
        title,
        description,
        "Bars: share of the time of all stages, over all threads.",
        Table::new(title, columns),
        shares.collect(),
    );
    let mut blocks = vec![Block::Picture(Box::new(picture))];
    blocks.extend(counters(profile, title)?);
    Ok(blocks)
}

/// Counters are pairs of a name and a number.
fn counters(profile: &Node<'_>, title: &str) -> Result<Option<Block>, Error> {
    let mut facts = Vec::new();
    for counter in profile.list("counters")? {
        let pair = counter.value().as_array().map(Vec::as_slice);
        let Some([name, number]) = pair else {
            return Err(counter.invalid("embar bench --json", format!("a counter of {title}")));
        };
        let (Some(name), Some(number)) = (name.as_str(), number.as_f64()) else {
            return Err(counter.invalid("embar bench --json", format!("a counter of {title}")));
        };
        let name = words::label(&name.replace('_', " "));
        facts.push(Fact::new(name, words::whole(number)));
    }
    let title = format!("Counters: {}", title.to_lowercase());
    Ok((!facts.is_empty()).then_some(Block::More(title, facts)))
}

/// How a figure is written.
type Show = fn(f64) -> String;

/// What trials cost.
pub(super) fn costs(root: &Node<'_>) -> Result<Vec<Block>, Error> {
    let Some(costs) = root.object("costs")? else {
        return Ok(Vec::new());
    };
    let sides = [costs.object("client")?, costs.object("brokers")?];
    let mut table = Table::new(
        "Costs, medians of the trials",
        ["cost", "#client", "#brokers"],
    );
    let rows: [(&str, &str, Show); 5] = [
        ("CPU seconds per GiB", "cpu_s_per_gib", words::number),
        ("of it in the kernel", "system_s_per_gib", words::number),
        ("CPUs busy", "cpus", words::number),
        ("minor faults per GiB", "minor_faults_per_gib", words::whole),
        ("peak memory, MiB", "peak_rss_bytes", |bytes| {
            words::whole(bytes / f64::from(1 << 20))
        }),
    ];
    for (name, field, show) in rows {
        let mut cells = vec![name.to_owned()];
        for side in &sides {
            let number = match side {
                Some(side) => side.number(field)?,
                None => None,
            };
            cells.push(number.map(show).unwrap_or_default());
        }
        if cells.iter().skip(1).any(|it| !it.is_empty()) {
            table.row(cells);
        }
    }
    if table.rows.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![Block::Heading("Costs".into()), Block::Table(table)])
}

/// What brokers or a subscriber counted, put in relation.
pub(super) fn derived(root: &Node<'_>) -> Result<Vec<Fact>, Error> {
    let names = [
        ("recv_calls_per_batch", "recv calls per batch"),
        ("bytes_per_recv", "bytes per recv"),
        ("recv_eagain", "recv calls that found nothing"),
        ("refused_batches", "refused batches"),
    ];
    let mut facts = Vec::new();
    for (field, name) in names {
        let number = root.number(field)?;
        facts.extend(number.map(|it| Fact::new(name, words::number(it))));
    }
    Ok(facts)
}

/// The trials of a configuration, as `mib_per_s` of objects.
pub(super) fn rates(name: impl Into<String>, trials: &[Node<'_>]) -> Result<Trials, Error> {
    let mut values = Vec::new();
    for trial in trials {
        values.extend(trial.number("mib_per_s")?);
    }
    let name = name.into();
    Ok(Trials { name, values })
}

/// The series of an experiment.
pub(super) struct Series {
    pub trials: Trials,
    pub median: f64,
    pub interval: Option<Interval>,
}

/// `series[]` of an experiment.
pub(super) fn series(root: &Node<'_>) -> Result<Vec<Series>, Error> {
    let one = |of: &Node<'_>| {
        let values = of.list("trials_mib_per_s")?;
        let values = values
            .iter()
            .map(Node::as_number)
            .collect::<Result<_, _>>()?;
        Ok(Series {
            trials: Trials {
                name: of.needed_text("name")?,
                values,
            },
            median: of.needed("median_mib_per_s")?,
            interval: of.interval("interval")?,
        })
    };
    root.objects("series")?.iter().map(one).collect()
}

/// A picture of their medians.
pub(super) fn medians(title: &str, unit: &str, all: &[Series]) -> Option<Block> {
    if all.is_empty() {
        return None;
    }
    let table = Table::new(title, ["of", &format!("#{unit}"), "#interval", "#trials"]);
    let line = |it: &Series| {
        let ends = it.interval.map(|it| {
            let ends = [it.low, it.high].map(words::number);
            ends.join(" to ") + &it.confidence()
        });
        let trials = match it.trials.values.len() {
            0 => String::new(),
            count => count.to_string(),
        };
        let name = &it.trials.name;
        Line {
            group: String::new(),
            label: name.clone(),
            cells: vec![
                name.clone(),
                words::number(it.median),
                ends.unwrap_or_default(),
                trials,
            ],
            interval: it.interval.unwrap_or(Interval {
                point: it.median,
                low: it.median,
                high: it.median,
                level: None,
            }),
            claim: Claim::Nothing,
            aim: None,
        }
    };
    let lines: Vec<Line> = all.iter().map(line).collect();
    let shown: Vec<String> = all
        .iter()
        .take(6)
        .map(|it| format!("{}: {} {unit}", it.trials.name, words::number(it.median)))
        .collect();
    let description = words::clipped(&format!("{}.", shown.join("; ")));
    let picture = ratios::medians(title, description, table, lines);
    Some(Block::Picture(Box::new(picture)))
}

/// The headings of the cells of [`comparison`].
pub(super) const COMPARISON: [&str; 6] = [
    "changed",
    "beside",
    "#ratio",
    "verdict",
    "#pairs",
    "#loss at most",
];

/// One comparison; `names` are used where it has none.
pub(super) fn comparison(
    of: &Node<'_>,
    names: [&str; 2],
    better: Better,
) -> Result<Option<Line>, Error> {
    // A verdict is built on the wider one.
    let interval = match of.interval("ratio_99")? {
        Some(interval) => interval,
        None => match of.interval("ratio")? {
            Some(interval) => interval,
            None => return Ok(None),
        },
    };
    let name = |field, other: &str| {
        let text = of.text(field);
        text.map(|text| text.unwrap_or_else(|| other.to_owned()))
    };
    let (changed, baseline) = (name("changed", names[0])?, name("baseline", names[1])?);
    let loss = match of.object("loss")? {
        Some(loss) => loss.number("upper")?,
        None => None,
    };
    let pairs = of.number("pairs")?.map(words::whole);
    // Recorded results keep only the ratio.
    let claim = match of.verdict("verdict")? {
        Some(verdict) => Claim::of(verdict, better),
        None => interval.claim(),
    };
    Ok(Some(Line {
        group: String::new(),
        label: format!("{changed} / {baseline}"),
        cells: vec![
            changed,
            baseline,
            interval.shown(),
            claim.words().to_owned(),
            pairs.unwrap_or_default(),
            loss.map(words::percent_fine).unwrap_or_default(),
        ],
        interval,
        claim,
        aim: None,
    }))
}

/// A picture of ratios.
pub(super) fn ratios(title: &str, better: Better, table: Table, lines: Vec<Line>) -> Block {
    let (scale, told) = (ratios::scale(&lines), told(&lines));
    let picture = ratios::picture(title, told, better, scale, table, lines);
    Block::Picture(Box::new(picture))
}

/// What a list of ratios says, in a sentence.
fn told(lines: &[Line]) -> String {
    let shown: Vec<String> = lines
        .iter()
        .take(4)
        .map(|line| format!("{}: {}", line.label, line.interval.shown()))
        .collect();
    let more = lines.len().saturating_sub(shown.len());
    let more = match more {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    words::clipped(&format!("{}{more}.", shown.join("; ")))
}
