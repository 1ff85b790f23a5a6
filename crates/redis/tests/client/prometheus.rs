//! What the exporter writes, read as a scraper reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use embar_redis::Client;
use embar_redis::commands::strings::StringCommands;
use embar_redis::config::CacheConfig;
use embar_redis::prometheus::Exporter;
use embar_redis::prometheus::prometheus_client::encoding::text::encode;
use embar_redis::prometheus::prometheus_client::registry::Registry;

use crate::support::{run, server, to};

/// The lines of a family, without comments, by all that stands before the value.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.rsplit_once(' ').expect("a name and a value"));
    pairs
        .map(|(name, value)| (name, value.parse().expect("a number")))
        .collect()
}

fn encoded(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).expect("a String takes everything");
    text
}

#[test]
fn a_registry_gets_what_a_scraper_understands() {
    let server = server();
    let node = server.address().to_string();
    let mut registry = Registry::default();
    let text = run(async {
        let mut config = to(&server);
        config.cache = Some(CacheConfig::new(1 << 20));
        let client = Client::with(config).await.expect("it connects");
        let other = Client::with(to(&server)).await.expect("it connects");
        let exporter = Exporter::new().watch("one", &client).watch("other", &other);
        exporter.register(&mut registry);
        for turn in 0..20 {
            client.set("key", turn).await.expect("it is set");
        }
        for _ in 0..3 {
            let read = client.cached(Duration::MAX).get::<u8, _>("key").await;
            assert_eq!(read, Ok(19));
        }
        encoded(&registry)
    });
    assert!(text.ends_with("# EOF\n"));
    let described = |what: &str| -> BTreeMap<&str, &str> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(what));
        let described: Vec<_> = lines
            .map(|line| line.split_once(' ').expect("two words"))
            .collect();
        let names: BTreeSet<_> = described.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), described.len(), "each is described once");
        described.into_iter().collect()
    };
    let (helps, kinds) = (described("# HELP "), described("# TYPE "));
    assert!(helps.keys().eq(kinds.keys()), "{helps:?} {kinds:?}");
    let samples = samples(&text);
    for name in samples.keys() {
        assert!(name.starts_with("embar_redis_"), "{name}");
        let bare = name.split('{').next().expect("a name");
        let suffixes: &[&str] = match bare {
            _ if bare.ends_with("_total") => &["_total"],
            _ => &["", "_sum", "_count", "_bucket"],
        };
        let family = suffixes
            .iter()
            .find_map(|suffix| kinds.get(bare.strip_suffix(suffix)?));
        let family = *family.unwrap_or_else(|| panic!("{name} has no type"));
        assert_eq!(
            family == "counter",
            bare.ends_with("_total"),
            "{name}: {family}"
        );
    }
    let value = |name: &str| {
        *samples
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    let of_node = format!("client=\"one\",node=\"{node}\"");
    let writes = format!("{of_node},class=\"write\"");
    assert_eq!(
        value(&format!("embar_redis_commands_total{{{writes}}}")),
        20.0
    );
    assert!(value(&format!("embar_redis_sent_bytes_total{{{of_node}}}")) > 400.0);
    assert_eq!(
        value(&format!("embar_redis_connects_total{{{of_node}}}")),
        1.0
    );
    assert_eq!(value("embar_redis_nodes{client=\"other\"}"), 1.0);
    assert_eq!(
        value("embar_redis_redirects_total{client=\"one\",kind=\"moved\"}"),
        0.0
    );
    assert_eq!(
        value("embar_redis_retries_total{client=\"one\",cause=\"loading\"}"),
        0.0
    );
    for (outcome, count) in [("hit", 2.0), ("miss", 1.0), ("bypassed", 0.0)] {
        let labels = format!("client=\"one\",outcome=\"{outcome}\"");
        let reads = value(&format!("embar_redis_cache_reads_total{{{labels}}}"));
        assert_eq!(reads, count, "{outcome}");
    }
    assert_eq!(value("embar_redis_cache_entries{client=\"one\"}"), 1.0);
    assert!(value("embar_redis_cache_bytes{client=\"one\"}") > 1.0);
    assert!(!text.contains("embar_redis_cache_entries{client=\"other\"}"));
    let sum = value(&format!("embar_redis_latency_seconds_sum{{{writes}}}"));
    assert!(sum > 0.0 && sum < 20.0, "seconds: {sum}");
    let mut before = 0.0;
    let buckets = text.lines().filter(|line| {
        line.starts_with("embar_redis_latency_seconds_bucket") && line.contains(&writes)
    });
    let mut last = "";
    for line in buckets {
        let (_, count) = line.rsplit_once(' ').expect("a value");
        let count: f64 = count.parse().expect("a number");
        assert!(count >= before, "{line}");
        (before, last) = (count, line);
    }
    assert!(last.contains("le=\"+Inf\"") && before == 20.0, "{last}");
    // Both clients are gone by now.
    let left = encoded(&registry);
    assert!(left.lines().all(|line| line.starts_with('#')), "{left}");
}
