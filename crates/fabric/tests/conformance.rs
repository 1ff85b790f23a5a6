//! One suite for every memory: mapped and coherent, mapped and written back by hand, simulated.
#![cfg(not(loom))]

mod common;
#[path = "common/follow.rs"]
mod follow;
#[path = "conformance/goi.rs"]
mod goi;
#[path = "conformance/goi_room.rs"]
mod goi_room;
#[path = "conformance/index.rs"]
mod index;
#[path = "conformance/index_follower.rs"]
mod index_follower;
#[path = "conformance/lane.rs"]
mod lane;
#[path = "conformance/memory.rs"]
mod memory;
#[path = "conformance/news.rs"]
mod news;
#[path = "conformance/notice.rs"]
mod notice;
#[path = "conformance/payload_file.rs"]
mod payload_file;
#[path = "conformance/sequencer.rs"]
mod sequencer;
#[path = "conformance/setup.rs"]
mod setup;
#[path = "conformance/tables.rs"]
mod tables;

macro_rules! suite {
    ($($module:ident :: $test:ident,)*) => {
        suite!(@on coherent, setup::OneMapping<false>, $($module::$test,)*);
        suite!(@on write_back, setup::OneMapping<true>, $($module::$test,)*);
        suite!(@on simulated, setup::Hosts, $($module::$test,)*);
    };
    (@on $name:ident, $setup:ty, $($module:ident :: $test:ident,)*) => {
        mod $name {
            use super::*;
            $(#[test] fn $test() { $module::$test::<$setup>(); })*
        }
    };
}

suite! {
    memory::words_and_bytes_come_back,
    memory::a_rest_of_a_word_is_kept,
    memory::what_is_published_is_observed,
    memory::out_of_bounds_panics,
    memory::a_row_is_never_torn,
    tables::rows_start_empty_and_show_the_last_store,
    tables::windows_continue_after_a_restart,
    tables::topic_records_hold_up_to_their_limit,
    tables::incarnations_grow,
    lane::the_smallest_ring_wraps,
    lane::a_record_is_overwritten_only_when_granted,
    lane::numbers_are_dense_over_incarnations,
    lane::a_lane_begins_anew_for_each_epoch,
    lane::the_oldest_record_of_a_dead_broker_is_found,
    lane::two_threads_agree,
    notice::notices_come_in_order,
    notice::as_many_are_kept_as_records_may_wait,
    notice::a_new_epoch_goes_on_above,
    notice::each_area_and_lane_has_its_own,
    news::news_name_what_has_changed,
    news::who_changes_something_tells,
    goi::records_are_followed_over_pages,
    goi::a_chain_begins_where_told,
    goi::positions_have_no_gaps,
    goi::what_came_before_an_epoch_is_found,
    goi::a_reader_follows_live,
    goi_room::a_full_index_names_what_to_give_up,
    goi_room::given_up_records_are_named_once,
    goi_room::older_epochs_keep_their_pages,
    goi_room::older_pages_are_kept_only_as_far_as_they_count,
    goi_room::chains_that_are_gone_leave_nothing,
    goi_room::a_used_page_shows_nothing_of_its_past,
    sequencer::a_candidate_is_seen_by_all,
    sequencer::sessions_continue_after_a_restart,
    sequencer::a_session_has_an_owner_beside_its_row,
    sequencer::brokers_say_which_sessions_they_hold,
    sequencer::only_candidates_have_an_area,
    sequencer::wild_numbers_panic,
    sequencer::a_sleeper_is_seen_by_all,
    index::records_come_back_in_order,
    index::pages_are_used_again,
    index::a_full_index_says_so,
    index::a_restart_continues,
    index::a_dropped_chain_is_gone,
    index::a_truncated_chain_ends_where_asked,
    index_follower::what_is_appended_is_read_by_those_who_are_told,
    index_follower::a_page_is_known_before_all_of_it_is_told,
    index_follower::a_record_that_is_not_there_is_lost,
    payload_file::what_is_committed_is_read_elsewhere,
    payload_file::a_block_stays_until_nobody_holds_it,
    payload_file::reservations_are_aligned_and_bounded,
    payload_file::the_last_reservation_can_be_given_back,
    payload_file::spans_slice_and_join,
    payload_file::recovery_finds_the_bytes,
    payload_file::wild_numbers_are_refused,
    payload_file::a_second_payload_file_panics,
}
