//! The results log: what is in the file, and which files it leaves alone.

use std::fs;

use embar_meter::results::{HEADER, ResultRow, ResultsError, append, read};

fn row(rate: f64) -> ResultRow {
    ResultRow {
        message_size: 1024,
        total_message_size: 10 << 30,
        num_threads_per_broker: 4,
        ack_level: 1,
        order: 0,
        replication_factor: 0,
        replicate_tinode: false,
        num_clients: 1,
        num_brokers_to_kill: 0,
        failure_percentage: 0.0,
        sequencer_type: "EMBARCADERO".to_owned(),
        pub_bandwidth_mbps: rate,
        sub_bandwidth_mbps: 0.0,
        e2e_bandwidth_mbps: 0.0,
    }
}

#[test]
fn a_new_log_has_the_header_and_every_row_its_line() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("data/throughput/pub/result.csv");
    append(&path, &row(2735.5)).expect("appended");
    append(&path, &row(2755.25)).expect("appended");
    let text = fs::read_to_string(&path).expect("the log");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "message_size,total_message_size,num_threads_per_broker,ack_level,order,replication_factor,replicate_tinode,\
             num_clients,num_brokers_to_kill,failure_percentage,sequencer_type,pub_bandwidth_mbps,sub_bandwidth_mbps,\
             e2e_bandwidth_mbps",
            "1024,10737418240,4,1,0,0,0,1,0,0,EMBARCADERO,2735.50,0.00,0.00",
            "1024,10737418240,4,1,0,0,0,1,0,0,EMBARCADERO,2755.25,0.00,0.00",
        ]
    );
    assert_eq!(
        read(&path).expect("its own rows"),
        [row(2735.5), row(2755.25)]
    );
}

#[test]
fn a_file_with_other_columns_is_left_as_it_is() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("result.csv");
    for text in [
        "a,b,c\n1,2,3\n",
        &format!("{HEADER},extra\n"),
        &HEADER[..40],
        "\n",
    ] {
        fs::write(&path, text).expect("written");
        assert!(
            matches!(
                append(&path, &row(1.0)),
                Err(ResultsError::OtherHeader { .. })
            ),
            "{text}"
        );
        assert_eq!(fs::read_to_string(&path).expect("still there"), text);
    }
}

#[test]
fn a_cut_off_line_is_kept_and_not_written_into() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("result.csv");
    fs::write(&path, format!("{HEADER}\n1024,107")).expect("written");
    append(&path, &row(5.0)).expect("appended");
    let text = fs::read_to_string(&path).expect("the log");
    assert_eq!(text.lines().nth(1), Some("1024,107"));
    assert_eq!(text.lines().count(), 3);
    let Err(ResultsError::BadLine {
        line: 2, column, ..
    }) = read(&path)
    else {
        panic!("a cut-off line was taken for a row");
    };
    assert_eq!(column, "num_threads_per_broker");
}

#[test]
fn a_row_that_could_not_be_read_again_is_not_written() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("result.csv");
    for bad in [
        ResultRow {
            sequencer_type: "a,b".to_owned(),
            ..row(1.0)
        },
        ResultRow {
            sequencer_type: String::new(),
            ..row(1.0)
        },
        row(f64::NAN),
    ] {
        assert!(matches!(
            append(&path, &bad),
            Err(ResultsError::BadRow { .. })
        ));
    }
    assert!(!path.exists());
}

#[test]
fn rows_appended_at_once_do_not_mix() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("result.csv");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let path = &path;
            scope.spawn(move || {
                for trial in 0..25 {
                    append(path, &row(f64::from(thread * 25 + trial))).expect("appended");
                }
            });
        }
    });
    let mut rates: Vec<f64> = read(&path)
        .expect("whole rows")
        .iter()
        .map(|row| row.pub_bandwidth_mbps)
        .collect();
    rates.sort_by(f64::total_cmp);
    assert_eq!(rates, (0..100).map(f64::from).collect::<Vec<f64>>());
}
