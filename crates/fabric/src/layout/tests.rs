use super::*;

#[test]
fn tables_are_aligned_and_do_not_overlap() {
    let smallest = Geometry {
        disks: 0,
        brokers: 1,
        topics: 1,
        lanes: 1,
        lane_slots: 2,
        index_pages: 1,
        payload_bytes: 65536,
        standbys: 0,
        spares: 0,
        goi_pages: 4,
        sessions: 1,
    };
    for geometry in [Geometry::default(), smallest] {
        let layout = Layout::new(&geometry);
        let mut end = SUPERBLOCK_BYTES;
        for table in layout.tables() {
            assert!(table.offset >= end && table.offset.is_multiple_of(TABLE_ALIGN));
            end = table.offset + table.bytes();
        }
        assert!(layout.control_bytes() >= end);
    }
}

#[test]
fn last_entries_lie_inside_their_tables() {
    let g = Geometry::default();
    let layout = Layout::new(&g);
    let (row, lane, topic) = (g.brokers - 1, g.lanes - 1, g.topics - 1);
    let ends = |id: TableId| layout.table(id).offset + layout.table(id).bytes();
    assert_eq!(
        layout.window(row, topic) + PAIR_BYTES,
        ends(TableId::Windows)
    );
    assert_eq!(
        layout.lane_slots(row, lane) + u64::from(g.lane_slots) * SLOT_BYTES,
        ends(TableId::LaneSlots)
    );
    assert_eq!(
        layout.index_pages(row).unwrap() + u64::from(g.index_pages) * INDEX_PAGE_BYTES,
        ends(TableId::IndexPages)
    );
    assert_eq!(
        layout.topic_record(topic) + TOPIC_RECORD_BYTES,
        ends(TableId::TopicRecords)
    );
}

#[test]
fn last_entries_of_areas_lie_inside_their_tables() {
    let g = Geometry {
        brokers: 5,
        standbys: 2,
        disks: 2,
        ..Geometry::default()
    };
    let layout = Layout::new(&g);
    let (area, row, lane, topic) = (g.areas() - 1, g.brokers - 1, g.lanes - 1, g.topics - 1);
    let lane_bytes = u64::from(g.lane_slots) * SLOT_BYTES;
    for (id, end) in [
        (
            TableId::LaneStarts,
            layout.lane_start(row, lane) + PAIR_BYTES,
        ),
        (TableId::Sleepers, layout.sleeper(row, g.lanes) + LINE_BYTES),
        (TableId::Sequencers, layout.sequencer(area) + PAIR_BYTES),
        (TableId::GoiRoots, layout.goi_root(area, topic) + PAIR_BYTES),
        (
            TableId::LaneGrants,
            layout.lane_grant(area, row, lane) + PAIR_BYTES,
        ),
        (
            TableId::Notices,
            layout.notices(area, row, lane) + 2 * lane_bytes,
        ),
        (
            TableId::Sessions,
            layout.sessions(area) + u64::from(g.sessions) * SESSION_BYTES,
        ),
        (
            TableId::Attached,
            layout.attached(row, g.attached_rows() - 1) + PAIR_BYTES,
        ),
        (TableId::Disks, layout.disk(area, g.disks - 1) + PAIR_BYTES),
        (
            TableId::Frontiers,
            layout.frontiers(area, g.disks - 1, topic) + u64::from(g.frontiers()) * PAIR_BYTES,
        ),
        (
            TableId::NewsCounts,
            layout.news_count(News::IndexPages(row)) + PAIR_BYTES,
        ),
        (
            TableId::NewsLines,
            layout.news_lines(News::IndexPages(row)) + lane_bytes,
        ),
        (
            TableId::GoiPages,
            layout.goi_pages(area) + u64::from(g.goi_pages) * INDEX_PAGE_BYTES,
        ),
    ] {
        let table = layout.table(id);
        assert_eq!(end, table.offset + table.bytes(), "{}", id.name());
    }
}

#[test]
fn the_printout_names_the_payload_files_that_there_are() {
    let shapes = [
        (1, 0, "payload-0 to payload-0"),
        (4, 1, "payload-1 to payload-2"),
        (2, 1, "payload-0 to payload-0"),
    ];
    for (brokers, standbys, expected) in shapes {
        let text = Layout::new(&Geometry {
            brokers,
            standbys,
            ..Geometry::default()
        })
        .to_string();
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
}

#[test]
fn the_printout_names_every_table_and_record() {
    let text = Layout::new(&Geometry::default()).to_string();
    for id in TableId::ALL {
        assert!(text.contains(id.name()), "{} is missing", id.name());
    }
    for name in [
        "superblock",
        PbrRecord::NAME,
        IndexRecord::NAME,
        Window::NAME,
        BrokerRow::NAME,
        ControlRow::NAME,
        LaneStart::NAME,
        LaneGrant::NAME,
        Notice::NAME,
        SequencerRow::NAME,
        SessionRow::NAME,
        SessionOwner::NAME,
        Attached::NAME,
        GoiRoot::NAME,
        GoiPage::NAME,
        GoiRecord::NAME,
        DiskRow::NAME,
        Frontier::NAME,
        NewsCount::NAME,
        NewsLine::NAME,
        "payload_crc",
    ] {
        assert!(text.contains(name), "{name} is missing");
    }
}
