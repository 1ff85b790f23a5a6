//! `embar layout`: what lies where in the region, and in the files of a disk.

mod disk_format;

use anyhow::Result;
use clap::Args;
use embar_console::size::Size;
use embar_fabric::{ClusterShape, Geometry, Layout};
use embar_supervise::plan;
use serde::Serialize;

use crate::context::Context;

/// Print the layout of a region, or of files on disks, from the definitions the brokers use
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar layout
  embar layout --brokers 4 --region-size 2GiB
  embar layout --brokers 4 --spares 4          what room for four more brokers costs
  embar layout --disks 2                       what a log on two disks takes of the region
  embar layout --disk-format                   what is in the files of a disk, byte by byte

Each spare costs its part of the tables now, and blog_bytes more once a broker joins there.

JSON: control_bytes, total_bytes, blog_bytes, spares, tables[] with name, writer, offset,
entry_bytes, entries; total_bytes is what the region takes before anybody has joined a spare.
With --disk-format: version, parts[] with name, about, bytes, fact and key (null if it is no fact),
fields[] with name, offset, bytes, meaning")]
pub struct LayoutArgs {
    /// The head and the brokers that take data
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=128))]
    brokers: u16,
    /// Standbys beside them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=7))]
    standbys: u16,
    /// Brokers that may join later [default: 1, or 0 for a head that is alone]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=126))]
    spares: Option<u16>,
    /// Topics that there may be at the same time [default: one for each MiB of the region, and at least 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16384))]
    topics: Option<u16>,
    /// Disks that topics may be on
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=8))]
    disks: u16,
    /// Bytes of the region
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    region_size: Size,
    /// Print what is in the files of a disk instead
    #[arg(long, conflicts_with_all = ["brokers", "standbys", "spares", "topics", "disks", "region_size"])]
    disk_format: bool,
}

#[derive(Serialize)]
struct Table {
    name: &'static str,
    writer: &'static str,
    offset: u64,
    entry_bytes: u64,
    entries: u64,
}

#[derive(Serialize)]
struct Region {
    control_bytes: u64,
    blog_bytes: u64,
    total_bytes: u64,
    spares: u16,
    tables: Vec<Table>,
}

/// Prints it.
pub fn run(args: &LayoutArgs, context: &Context) -> Result<()> {
    if args.disk_format {
        return disk_format::run(context);
    }
    let spares = args.spares;
    let spares = spares.unwrap_or_else(|| plan::default_spares(args.brokers, args.standbys));
    let geometry = Geometry::for_cluster(ClusterShape {
        region_bytes: args.region_size.0,
        data_brokers: args.brokers - 1,
        standbys: args.standbys,
        spares,
        topics: args.topics,
        disks: args.disks,
    })
    .map_err(|error| crate::exit::usage(error.to_string()))?;
    let layout = Layout::new(&geometry);
    let tables = layout
        .tables()
        .iter()
        .map(|table| Table {
            name: table.id.name(),
            writer: table.id.writer(),
            offset: table.offset,
            entry_bytes: table.entry_bytes,
            entries: table.entries,
        })
        .collect();
    context.output.json(&Region {
        control_bytes: layout.control_bytes(),
        blog_bytes: geometry.payload_bytes,
        total_bytes: geometry.total_bytes(),
        spares: geometry.spares,
        tables,
    })?;
    context.output.say(layout)
}
