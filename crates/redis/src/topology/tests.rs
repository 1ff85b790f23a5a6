//! Replies of Redis 7.0.15, captured from clusters of one and two nodes, and such as never came
//! from one.

use super::*;
use crate::resp::parse;

type Read = fn(View<'_>, &Endpoint) -> Result<Topology, TopologyError>;

const SLOTS_OF: Read = Topology::from_slots;
const SHARDS_OF: Read = |view, asked| Topology::from_shards(view, asked, false);
const TLS_SHARDS_OF: Read = |view, asked| Topology::from_shards(view, asked, true);

/// A captured reply as bytes. Its lines are words here, and what differs between the protocols has
/// names: `M2` is the first line of a map of two pairs, `NULL` is null. `EMPTY` is an empty line.
fn wire(lines: &str, version: u32) -> Vec<u8> {
    let line = |word: &str| match (word, word.strip_prefix('M')) {
        ("EMPTY", _) => String::new(),
        ("NULL", _) if version == 3 => "_".to_owned(),
        ("NULL", _) => "$-1".to_owned(),
        (_, Some(pairs)) if version == 3 => format!("%{pairs}"),
        (_, Some(pairs)) => format!("*{}", 2 * pairs.parse::<u32>().expect("pairs")),
        (word, None) => word.to_owned(),
    };
    let lines = lines.split_whitespace().map(|word| line(word) + "\r\n");
    lines.collect::<String>().into_bytes()
}

fn try_read(lines: &str, version: u32, read: Read) -> Result<Topology, TopologyError> {
    let bytes = wire(lines, version);
    let (view, len) = parse(&bytes).expect("a reply");
    assert_eq!(len, bytes.len());
    read(view, &node("10.9.9.9", 17901))
}

/// What a reply says, which is the same in both protocols.
fn read(lines: &str, read: Read) -> Topology {
    let [old, new] = [2, 3].map(|version| try_read(lines, version, read).expect("a topology"));
    assert_eq!(old, new);
    new
}

fn refused(lines: &str, read: Read) -> TopologyError {
    let [old, new] = [2, 3].map(|version| try_read(lines, version, read).expect_err(lines));
    assert_eq!(old, new);
    new
}

fn node(host: &str, port: u16) -> Endpoint {
    Endpoint::tcp(host, port)
}

fn shard(primary: Endpoint, replicas: &[Endpoint], ranges: &[RangeInclusive<u16>]) -> Shard {
    Shard {
        primary,
        replicas: replicas.to_vec(),
        ranges: ranges.to_vec(),
    }
}

const SLOTS_TWO_RANGES: &str = "*2
    *4 :0 :4
    *4 $9 127.0.0.1 :17901 $40 51ab5295cf77df4ea787051d7034c518ad8aec45 M0
    *4 $9 127.0.0.1 :17902 $40 232bd8fcd808ade9eec4f2c18578fe60aa66154a M0
    *4 :6 :16383
    *4 $9 127.0.0.1 :17901 $40 51ab5295cf77df4ea787051d7034c518ad8aec45 M0
    *4 $9 127.0.0.1 :17902 $40 232bd8fcd808ade9eec4f2c18578fe60aa66154a M0";

const SHARDS_TWO_RANGES: &str = "*1 M2 $5 slots *4 :0 :4 :6 :16383 $5 nodes *2
    M7 $2 id $40 51ab5295cf77df4ea787051d7034c518ad8aec45 $4 port :17901 $2 ip $9 127.0.0.1
    $8 endpoint $9 127.0.0.1 $4 role $6 master $18 replication-offset :84 $6 health $6 online
    M7 $2 id $40 232bd8fcd808ade9eec4f2c18578fe60aa66154a $4 port :17902 $2 ip $9 127.0.0.1
    $8 endpoint $9 127.0.0.1 $4 role $7 replica $18 replication-offset :84 $6 health $6 online";

#[test]
fn both_commands_in_both_protocols_tell_the_same() {
    let topology = read(SLOTS_TWO_RANGES, SLOTS_OF);
    let replica = node("127.0.0.1", 17902);
    let wanted = shard(node("127.0.0.1", 17901), &[replica], &[0..=4, 6..=16383]);
    assert_eq!(topology.shards(), [wanted]);
    assert_eq!(topology.uncovered(), 1);
    assert_eq!(topology.shard_of(5), None);
    assert_eq!(topology.shard_of(16383), topology.shards().first());
    assert_eq!(topology.index_of(0), Some(0));
    assert_eq!(read(SHARDS_TWO_RANGES, SHARDS_OF), topology);
}

#[test]
fn a_node_that_does_not_know_its_address_is_where_it_was_asked() {
    let wanted = [shard(node("10.9.9.9", 17903), &[], &[0..=99, 200..=16383])];
    let fresh = "*2
        *3 :0 :99 *4 $0 EMPTY :17903 $40 eb8b095e3969c28b3620d56a506a387824f60d19 M0
        *3 :200 :16383 *4 $0 EMPTY :17903 $40 eb8b095e3969c28b3620d56a506a387824f60d19 M0";
    assert_eq!(read(fresh, SLOTS_OF).shards(), wanted);
    let fresh = "*1 M2 $5 slots *4 :0 :99 :200 :16383 $5 nodes *1 M7
        $2 id $40 eb8b095e3969c28b3620d56a506a387824f60d19 $4 port :17903 $2 ip $0 EMPTY
        $8 endpoint $0 EMPTY $4 role $6 master $18 replication-offset :0 $6 health $6 online";
    assert_eq!(read(fresh, SHARDS_OF).shards(), wanted);
}

#[test]
fn null_is_where_it_was_asked() {
    let unknown = "*1 *4 :0 :16383
        *4 NULL :17901 $40 51ab5295cf77df4ea787051d7034c518ad8aec45
        M2 $2 ip $9 127.0.0.1 $8 hostname $18 node-1.example.com
        *4 NULL :17902 $40 232bd8fcd808ade9eec4f2c18578fe60aa66154a M1 $2 ip $9 127.0.0.1";
    let topology = read(unknown, SLOTS_OF);
    let [primary, replica] = [17901, 17902].map(|port| node("10.9.9.9", port));
    assert_eq!(
        topology.shards(),
        [shard(primary, &[replica], &[0..=16383])]
    );
    assert_eq!(topology.uncovered(), 0);
}

#[test]
fn names_are_preferred_where_the_server_prefers_them() {
    let named = node("node-1.example.com", 17901);
    let wanted = [shard(named, &[node("127.0.0.1", 17902)], &[0..=16383])];
    let slots = "*1 *4 :0 :16383
        *4 $18 node-1.example.com :17901 $40 51ab5295cf77df4ea787051d7034c518ad8aec45
        M1 $2 ip $9 127.0.0.1
        *4 $1 ? :17902 $40 232bd8fcd808ade9eec4f2c18578fe60aa66154a M1 $2 ip $9 127.0.0.1";
    assert_eq!(read(slots, SLOTS_OF).shards(), wanted);
    let shards = "*1 M2 $5 slots *2 :0 :16383 $5 nodes *2
        M8 $2 id $40 51ab5295cf77df4ea787051d7034c518ad8aec45 $4 port :17901 $2 ip $9 127.0.0.1
        $8 endpoint $18 node-1.example.com $8 hostname $18 node-1.example.com
        $4 role $6 master $18 replication-offset :28 $6 health $6 online
        M7 $2 id $40 232bd8fcd808ade9eec4f2c18578fe60aa66154a $4 port :17902 $2 ip $9 127.0.0.1
        $8 endpoint $1 ? $4 role $7 replica $18 replication-offset :28 $6 health $6 online";
    assert_eq!(read(shards, SHARDS_OF).shards(), wanted);
}

#[test]
fn replicas_that_fail_or_load_are_left_out() {
    let loading = SHARDS_TWO_RANGES.replace(
        "replication-offset :84 $6 health $6 online\n    M7 $2",
        "replication-offset :84 $6 health $4 fail\n    M7 $2",
    );
    let topology = read(&loading, SHARDS_OF);
    // A primary that fails is still the one that the slots have.
    assert_eq!(topology, read(SHARDS_TWO_RANGES, SHARDS_OF));
    for health in ["$7 loading", "$4 fail", "$6 failed"] {
        let (before, _) = SHARDS_TWO_RANGES
            .rsplit_once("$6 online")
            .expect("a health");
        let topology = read(&format!("{before}{health}"), SHARDS_OF);
        assert_eq!(topology.shards()[0].replicas, [], "{health}");
        assert_eq!(topology.uncovered(), 1);
    }
}

#[test]
fn the_primary_that_answers_is_preferred_to_one_that_was_replaced() {
    let both = SHARDS_TWO_RANGES
        .replace("$7 replica", "$6 master")
        .replacen("$6 online", "$4 fail", 1);
    let topology = read(&both, SHARDS_OF);
    assert_eq!(topology.shards()[0].primary, node("127.0.0.1", 17902));
}

#[test]
fn ports_for_tls_are_taken_when_tls_is_wanted() {
    let with_tls = SHARDS_TWO_RANGES.replacen("M7 $2 id", "M8 $8 tls-port :7 $2 id", 1);
    let plain = read(&with_tls, SHARDS_OF);
    assert_eq!(plain, read(SHARDS_TWO_RANGES, SHARDS_OF));
    let topology = read(&with_tls, TLS_SHARDS_OF);
    let wanted = shard(node("127.0.0.1", 7), &[], &[0..=4, 6..=16383]);
    assert_eq!(topology.shards(), [wanted]);
    assert_eq!(read(SHARDS_TWO_RANGES, TLS_SHARDS_OF).uncovered(), 16384);
}

#[test]
fn a_cluster_without_slots_has_no_shards() {
    let topology = read("*0", SLOTS_OF);
    assert_eq!((topology.shards(), topology.uncovered()), (&[][..], 16384));
    let fresh = "*1 M2 $5 slots *0 $5 nodes *1 M7
        $2 id $40 eb8b095e3969c28b3620d56a506a387824f60d19 $4 port :17903 $2 ip $0 EMPTY
        $8 endpoint $0 EMPTY $4 role $6 master $18 replication-offset :0 $6 health $6 online";
    assert_eq!(read(fresh, SHARDS_OF), topology);
}

#[test]
fn old_servers_tell_less_and_in_any_order() {
    // As 3.0 does, which has no ids.
    let slots = "*3 *3 :8000 :16383 *2 $1 b :2 *4 :10 :7999 *2 $1 a :1 *2 $1 c :3
        *4 :0 :9 *2 $1 a :1 *2 $1 d :4";
    let topology = read(slots, SLOTS_OF);
    let replicas = [node("c", 3), node("d", 4)];
    let first = shard(node("a", 1), &replicas, &[0..=7999]);
    let second = shard(node("b", 2), &[], &[8000..=16383]);
    assert_eq!(topology.shards(), [first, second]);
    for slot in [0, 9, 10, 7999, 8000, 16383] {
        let host = if slot < 8000 { "a" } else { "b" };
        let shard = topology.shard_of(slot).expect("all slots have a shard");
        assert!(matches!(&shard.primary, Endpoint::Tcp { host: of, .. } if of == host));
    }
}

#[test]
fn a_primary_without_a_name_leaves_its_slots_uncovered() {
    let topology = read("*2 *3 :0 :9 *2 $1 ? :1 *3 :10 :19 *2 $1 a :0", SLOTS_OF);
    assert_eq!((topology.shards(), topology.uncovered()), (&[][..], 16384));
}

#[test]
fn a_server_without_a_cluster_says_so() {
    let lines = b"-ERR This instance has cluster support disabled\r\n";
    let (view, _) = parse(lines).expect("a reply");
    let error = Topology::from_slots(view, &node("a", 1)).expect_err("an error");
    assert!(error.to_string().contains("cluster support disabled"));
}

#[test]
fn slots_that_are_there_twice_are_an_error() {
    let twice = "*2 *3 :0 :9 *2 $1 a :1 *3 :9 :12 *2 $1 b :1";
    assert_eq!(refused(twice, SLOTS_OF), TopologyError::Overlap { slot: 9 });
    let twice = SHARDS_TWO_RANGES.replace(":6", ":3");
    assert_eq!(
        refused(&twice, SHARDS_OF),
        TopologyError::Overlap { slot: 3 }
    );
}

#[test]
fn other_replies_are_errors() {
    let malformed = |lines: &str, read: Read| {
        let error = refused(lines, read);
        assert!(
            matches!(error, TopologyError::Malformed { .. }),
            "{lines}: {error}"
        );
    };
    for lines in [
        "+OK",
        "NULL",
        "*1 :1",
        "*1 *0",
        "*1 *2 :0 :1",
        "*1 *3 :0 :16384 *2 $1 a :1",
        "*1 *3 :-1 :1 *2 $1 a :1",
        "*1 *3 :2 :1 *2 $1 a :1",
        "*1 *3 +x :1 *2 $1 a :1",
        "*1 *3 :0 :1 *1 $1 a",
        "*1 *3 :0 :1 *2 $1 a :65536",
        "*1 *3 :0 :1 *2 :1 :1",
        "*1 *3 :0 :1 *4 $1 a :1 $1 x *1 $2 ip",
        "*1 *4 :0 :1 *2 $1 a :1 $1 x",
    ] {
        malformed(lines, SLOTS_OF);
    }
    for lines in [
        "+OK",
        "*1 +x",
        "*1 *1 $5 slots",
        "*1 M1 $5 slots +x",
        "*1 M1 $5 slots *1 :1",
        "*1 M1 $5 slots *2 :1 :0",
        "*1 M1 $5 nodes +x",
        "*1 M1 $5 nodes *1 +x",
        "*1 M1 $5 nodes *1 M1 $4 port :1",
        "*1 M1 $5 nodes *1 M2 $4 port $1 x $8 endpoint $1 a",
    ] {
        malformed(lines, SHARDS_OF);
    }
}

#[test]
fn the_most_shards_that_there_can_be_are_read() {
    let mut lines = format!("*{SLOTS}");
    for slot in 0..SLOTS {
        lines += &format!(" *3 :{slot} :{slot} *2 $1 a :{}", slot + 1);
    }
    let topology = try_read(&lines, 3, SLOTS_OF).expect("a topology");
    assert_eq!(topology.shards().len(), usize::from(SLOTS));
    assert_eq!(topology.index_of(16383), Some(16383));
}
