use super::*;
use crate::tls::TlsConfigError;

fn config(url: &str) -> Config {
    Config::from_url(url).unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn refused(url: &str) -> UrlError {
    Config::from_url(url).expect_err(url)
}

#[test]
fn a_server_with_everything() {
    let read = config("redis://me:p%40ss@example.com:7000/3?protocol=resp2&timeout=250ms");
    let wanted = Config {
        username: Some("me".to_owned()),
        password: Some(Secret::new("p@ss")),
        database: 3,
        protocol: ProtocolVersion::Resp2,
        timeout: Duration::from_millis(250),
        ..Config::standalone(Endpoint::tcp("example.com", 7000))
    };
    assert_eq!(read, wanted);
}

#[test]
fn what_is_left_out_is_as_by_default() {
    for url in [
        "redis://127.0.0.1",
        "redis://127.0.0.1/",
        "redis://127.0.0.1:6379?",
    ] {
        assert_eq!(config(url), Config::default(), "{url}");
    }
    let password = Some(Secret::new("x:y@z/"));
    let read = config("redis://:x:y@z/@h");
    assert_eq!((read.username, read.password), (None, password));
    assert_eq!(read.tls, None);
    assert_eq!("redis://127.0.0.1".parse(), Ok(Config::default()));
}

#[test]
fn a_cluster_has_seeds() {
    let read = config("redis-cluster://u:p@a:1,[2001:db8::1]:2,[::1],b/?read_from=any");
    assert_eq!(read.mode, Mode::Cluster);
    assert_eq!(read.read_from, ReadFrom::Any);
    let seeds = ["a:1", "[2001:db8::1]:2", "[::1]:6379", "b:6379"];
    let shown = read.seeds.iter().map(Endpoint::to_string);
    assert_eq!(shown.collect::<Vec<_>>(), seeds);
}

#[test]
fn a_primary_with_replicas_has_seeds_and_a_database() {
    let read = config("redis-replicated://u:p@a,b:2/3?read_from=prefer-replica");
    let mut wanted = Config::replicated([Endpoint::tcp("a", 6379), Endpoint::tcp("b", 2)]);
    (wanted.username, wanted.password) = (Some("u".to_owned()), Some(Secret::new("p")));
    (wanted.database, wanted.read_from) = (3, ReadFrom::PreferReplica);
    assert_eq!(read, wanted);
}

#[test]
fn sentinels_know_the_primary_by_name() {
    let mut wanted = Config::sentinels("my#1", [Endpoint::tcp("a", 26379), Endpoint::tcp("b", 2)]);
    (wanted.username, wanted.password) = (Some("u".to_owned()), Some(Secret::new("p")));
    wanted.database = 3;
    for url in [
        "redis-sentinel://u:p@a,b:2/3#my%231",
        "redis-sentinel://u:p@a,b:2/3?master_name=my%231",
        "redis-sentinel://u:p@a,b:2?sentinelMasterId=my%231&db=3",
    ] {
        assert_eq!(config(url), wanted, "{url}");
    }
    let read =
        config("redis-sentinel://:p#q@a?sentinel_username=w&sentinel_password=%26x#insecure");
    assert_eq!(read.password, Some(Secret::new("p#q")));
    assert_eq!(read.sentinel.master_name, "insecure");
    assert_eq!(read.sentinel.username.as_deref(), Some("w"));
    assert_eq!(read.sentinel.password, Some(Secret::new("&x")));
    let unnamed = UrlError::Config(ConfigError::MasterName);
    for url in ["redis-sentinel://a", "redis-sentinel://:p#q@a"] {
        assert_eq!(refused(url), unnamed, "{url}");
    }
    let error = refused("redis://a?master_name=x").to_string();
    assert!(
        error.contains("master_name") && error.contains("redis-sentinel://"),
        "{error}"
    );
    let error = refused("redis-sentinel://a?sentinel_tls=true#x").to_string();
    assert!(error.contains("rediss://"), "{error}");
}

#[cfg(feature = "tls")]
#[test]
fn connections_to_sentinels_are_encrypted_as_those_to_servers_or_not_at_all() {
    let tls = Tls {
        ca_files: vec!["c.pem".into()],
        ..Tls::default()
    };
    let read = config("rediss-sentinel://a?tls_ca_file=c.pem#x");
    assert_eq!(
        (&read.tls, &read.sentinel.tls),
        (&Some(tls.clone()), &Some(tls.clone()))
    );
    let read = config("rediss-sentinel://a?sentinel_tls=false&tls_ca_file=c.pem#insecure");
    assert_eq!((read.tls, read.sentinel.tls), (Some(tls), None));
}

#[cfg(feature = "tls")]
#[test]
fn an_encrypted_connection_has_options_of_its_own() {
    for url in [
        "rediss://a",
        "rediss-cluster://a,b",
        "rediss-replicated://a",
    ] {
        assert_eq!(config(url).tls, Some(Tls::default()), "{url}");
    }
    let read = config(
        "rediss-cluster://:p@a:1,b?tls_ca_file=/etc/a%20b.pem&tls_ca_file=c.pem&\
         tls_cert_file=d.pem&tls_key_file=e.pem&tls_server_name=f&tls_insecure=false",
    );
    assert_eq!((read.mode, read.seeds.len()), (Mode::Cluster, 2));
    let wanted = Tls {
        ca_files: vec!["/etc/a b.pem".into(), "c.pem".into()],
        cert_file: Some("d.pem".into()),
        key_file: Some("e.pem".into()),
        server_name: Some("f".to_owned()),
        ..Tls::default()
    };
    assert_eq!(read.tls, Some(wanted));
    let insecure = |url| {
        let tls = config(url).tls;
        tls.is_some_and(|tls| tls.danger_accept_any_certificate)
    };
    assert!(insecure("rediss://:pw@a:1/2#insecure"));
    assert!(insecure("rediss-cluster://a?timeout=1s#insecure"));
    assert!(insecure("rediss://a?tls_insecure=true"));
    assert!(!insecure("rediss://a?client_name=%23insecure"));
    let error = refused("rediss://a?tls_insecure=yes").to_string();
    assert!(
        error.contains("tls_insecure must be true or false"),
        "{error}"
    );
    let error = refused("rediss://a?tls_ca=x").to_string();
    assert!(
        error.contains("'tls_ca'") && error.contains("tls_ca_file"),
        "{error}"
    );
    let refused = |url| match refused(url) {
        UrlError::Config(error) => error,
        error => panic!("{url}: {error}"),
    };
    let one = ConfigError::Tls(TlsConfigError::CertificateWithoutKey);
    assert_eq!(refused("rediss://a?tls_cert_file=x"), one);
    assert_eq!(refused("rediss://a?tls_key_file=x"), one);
}

#[cfg(not(feature = "tls"))]
#[test]
fn without_encryption_it_says_how_to_get_it() {
    for url in [
        "rediss://a",
        "rediss-cluster://a",
        "rediss-sentinel://a#x",
        "rediss://a#insecure",
    ] {
        let error = refused(url);
        assert_eq!(
            error,
            UrlError::Config(ConfigError::Tls(TlsConfigError::FeatureOff)),
            "{url}"
        );
        assert!(error.to_string().contains("feature `tls`"), "{error}");
    }
}

#[test]
fn options_about_encryption_take_a_url_with_encryption() {
    let error = refused("redis://h?tls_ca_file=ca.pem").to_string();
    assert!(
        error.contains("tls_ca_file") && error.contains("rediss://"),
        "{error}"
    );
}

#[test]
fn sockets_have_paths() {
    let socket = |path: &str| vec![Endpoint::Unix(path.into())];
    assert_eq!(config("unix:/run/r.sock").seeds, socket("/run/r.sock"));
    assert_eq!(config("unix:///run/r.sock").seeds, socket("/run/r.sock"));
    let read = config("redis+unix://u:p@/a%20b@c?db=4");
    assert_eq!(read.seeds, socket("/a b@c"));
    assert_eq!(read.database, 4);
    assert_eq!(read.username.as_deref(), Some("u"));
    let read = config("unix:/s?username=u&password=a%26b");
    assert_eq!(read.password, Some(Secret::new("a&b")));
}

#[test]
fn every_option_sets_its_field() {
    let read = config(
        "redis://h?client_name=x&mux_per_node=2&max_in_flight=7&max_blocking=9&blocking_idle=2m&on_full=refuse&timeout=1m&\
         connect_timeout=3s&dead_after=1h&max_redirects=0&backoff_min=10us&backoff_max=1s&\
         retry_writes=true&reconnect_on=READONLY,LOADING&read_from=prefer-replica&refresh_interval=9s&\
         max_reply_bytes=64MiB&ring_bytes=4096&database=5",
    );
    assert_eq!(read.client_name.as_deref(), Some("x"));
    assert_eq!((read.mux_per_node, read.max_in_flight), (2, 7));
    assert_eq!(read.max_blocking, 9);
    assert_eq!(read.blocking_idle, Duration::from_secs(120));
    assert_eq!(read.on_full, OnFull::Refuse);
    assert_eq!(read.timeout, Duration::from_secs(60));
    assert_eq!(read.connect_timeout, Duration::from_secs(3));
    assert_eq!(read.dead_after, Duration::from_secs(3600));
    assert_eq!(read.retries.max_redirects, 0);
    assert_eq!(read.retries.backoff_min, Duration::from_micros(10));
    assert_eq!(read.retries.backoff_max, Duration::from_secs(1));
    assert!(read.retry_writes);
    let words = ["READONLY".to_owned(), "LOADING".to_owned()];
    assert_eq!(read.reconnect_on.as_deref(), Some(words.as_slice()));
    assert_eq!(
        config("redis://h?reconnect_on=").reconnect_on,
        Some(Vec::new())
    );
    assert_eq!(config("redis://h").reconnect_on, None);
    assert_eq!(read.read_from, ReadFrom::PreferReplica);
    assert_eq!(read.refresh_interval, Duration::from_secs(9));
    assert_eq!((read.max_reply_bytes, read.ring_bytes), (64 << 20, 4096));
    assert_eq!(read.database, 5);
}

#[test]
fn what_cannot_be_read_is_named() {
    for url in ["", "localhost", "http://h", "redis:h", "user:pw@h"] {
        assert_eq!(refused(url), UrlError::Scheme, "{url}");
    }
    for url in [
        "redis://h:0",
        "redis://h:x",
        "redis://:1",
        "redis://[::1",
        "redis://[::1]x",
    ] {
        assert_eq!(refused(url), UrlError::Host, "{url}");
    }
    assert_eq!(refused("redis://::1"), UrlError::Host);
    assert_eq!(refused("redis-cluster://a,,b"), UrlError::Host);
    assert_eq!(refused("redis://"), UrlError::NoHost);
    assert_eq!(refused("unix:run.sock"), UrlError::NoPath);
    assert_eq!(refused("redis://h/x"), UrlError::Database);
    assert_eq!(refused("redis://h/1/2"), UrlError::Database);
    for url in [
        "redis://:%4@h",
        "redis://:%zz@h",
        "redis://:%FF@h",
        "unix:/%",
    ] {
        assert_eq!(refused(url), UrlError::Percent, "{url}");
    }
    let error = refused("redis://h?tiemout=1s").to_string();
    assert!(
        error.contains("'tiemout'") && error.contains("connect_timeout"),
        "{error}"
    );
    for url in [
        "redis://h?timeout=5",
        "redis://h?timeout=s",
        "redis://h?timeout=-1s",
    ] {
        let error = refused(url).to_string();
        assert!(
            error.contains("timeout must be") && error.contains("ms"),
            "{error}"
        );
    }
    let error = refused("redis://h?protocol=4").to_string();
    assert!(error.contains("resp2 or resp3"), "{error}");
    assert!(refused("http://h").to_string().contains("redis-cluster://"));
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let refused = |url| match refused(url) {
        UrlError::Config(error) => error,
        error => panic!("{url}: {error}"),
    };
    assert_eq!(
        refused("redis-cluster://h/1"),
        ConfigError::DatabaseInCluster
    );
    assert_eq!(
        refused("redis-cluster://h?db=1"),
        ConfigError::DatabaseInCluster
    );
    assert_eq!(refused("redis://a,b"), ConfigError::SeveralServers);
    assert_eq!(refused("redis://u@h"), ConfigError::UserWithoutPassword);
    let option = "mux_per_node";
    assert_eq!(
        refused("redis://h?mux_per_node=0"),
        ConfigError::Zero { option }
    );
}

#[test]
fn no_error_shows_a_password() {
    for url in [
        "redis://u:hunter2",
        "redis://u:hunter2@",
        "redis://u:hunter2@h:x",
        "redis://u:hunter2%@h",
        "u:hunter2@h",
        "redis://u:1?hunter2&x@h",
        "redis-sentinel://u:hunter2@a?sentinel_password=hunter2",
        "redis-sentinel://u:hunter2#x@a#",
        "hunter2@h:1",
        "unix:/s?password=hunter2%",
        "unix:/s?password=hunter2&db=x",
    ] {
        let error = refused(url);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}");
    }
}

#[test]
fn schemes_and_options_of_others_are_taken() {
    let plain = config("redis://u:p@h:1/2");
    for url in [
        "valkey://u:p@h:1/2",
        "VALKEY://u:p@h:1/2/",
        "REDIS://h:1/?db=2&user=u&pass=p",
    ] {
        assert_eq!(config(url), plain, "{url}");
    }
    let read = config("valkey-cluster://a,b");
    assert_eq!((read.mode, read.seeds.len()), (Mode::Cluster, 2));
    for (url, version) in [
        ("redis://h?protocol=2", ProtocolVersion::Resp2),
        ("redis://h?protocol=3", ProtocolVersion::Resp3),
    ] {
        assert_eq!(config(url).protocol, version, "{url}");
    }
    let socket = config("unix:/run/redis.sock?user=u&pass=a+b&db=3");
    for url in [
        "redis+unix:/run/redis.sock?user=u&pass=a+b&db=3",
        "valkey+unix:///run/redis.sock?username=u&password=a%2Bb&database=3",
        "valkey+unix://u:a+b@/run/redis.sock?db=3",
    ] {
        assert_eq!(config(url), socket, "{url}");
    }
    assert_eq!(refused("valkeyx://h"), UrlError::Scheme);
    assert_eq!(
        refused("redis://h?protocol=4").to_string(),
        "the value of the option protocol must be resp2 or resp3"
    );
}

#[cfg(feature = "tls")]
#[test]
fn schemes_of_others_encrypt() {
    assert_eq!(config("valkeys://h").tls, Some(Tls::default()));
    assert_eq!(config("valkeys-cluster://h").tls, Some(Tls::default()));
    for url in [
        "valkeys://h:1/#insecure",
        "rediss://h:1/0#insecure",
        "Rediss://h#insecure",
    ] {
        let tls = config(url).tls.expect("it encrypts");
        assert!(tls.danger_accept_any_certificate, "{url}");
    }
}

#[test]
fn the_library_may_have_another_name_or_none() {
    let read = config("redis://h?lib_name=mine&lib_version=");
    assert_eq!(
        (read.lib_name.as_deref(), read.lib_version),
        (Some("mine"), None)
    );
}

#[test]
fn a_map_of_addresses_is_a_list_of_pairs() {
    let read = config("redis-cluster://h?address_map=10.0.0.1:7000=nat:1,[::1]:7001=[::2]:2");
    let wanted = AddressMap::table([
        (Endpoint::tcp("10.0.0.1", 7000), Endpoint::tcp("nat", 1)),
        (Endpoint::tcp("::1", 7001), Endpoint::tcp("::2", 2)),
    ]);
    assert_eq!(read.address_map, Some(wanted));
    for map in ["a:1", "a:1=", "=b:1", "a:1=b:0"] {
        let url = format!("redis://h?address_map={map}");
        assert_eq!(refused(&url), UrlError::AddressMap, "{map}");
    }
}

#[test]
fn a_cache_has_a_size_and_perhaps_prefixes() {
    let read = config("redis-cluster://a?cache=64MiB").cache;
    assert_eq!(read, Some(CacheConfig::new(64 << 20)));
    let read = config("redis://a?cache=1MiB&cache_tracking=all").cache;
    assert_eq!(read.map(|cache| cache.tracking), Some(Tracking::All));
    let read = config("redis://a?cache_prefix=user%3A&cache_prefix=b&cache=1").cache;
    let prefixes = Tracking::Prefixes(vec![b"user:".to_vec(), b"b".to_vec()]);
    assert_eq!(read.map(|cache| cache.tracking), Some(prefixes));
    let read = config("redis://a?cache=1&cache_tracking=prefixes").cache;
    let every = Tracking::Prefixes(Vec::new());
    assert_eq!(read.map(|cache| cache.tracking), Some(every));
    for (url, wanted) in [
        ("redis://a?cache_tracking=all", "more than zero"),
        (
            "redis://a?cache=1&cache_tracking=some",
            "opt-in, all or prefixes",
        ),
        ("redis://a?cache=1MiB&protocol=resp2", "a cache needs RESP3"),
        (
            "redis://a?cache=1&cache_prefix=a&cache_prefix=ab",
            "begins with another one",
        ),
    ] {
        let error = refused(url).to_string();
        assert!(error.contains(wanted), "{url}: {error}");
    }
}
