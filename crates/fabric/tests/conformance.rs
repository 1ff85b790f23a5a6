//! One suite for every memory: mapped and coherent, mapped and written back by hand, simulated.
#![cfg(not(loom))]

#[path = "conformance/blog.rs"]
mod blog;
mod common;
#[path = "conformance/index.rs"]
mod index;
#[path = "conformance/lane.rs"]
mod lane;
#[path = "conformance/memory.rs"]
mod memory;
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
    tables::garbage_is_not_a_region,
    tables::rows_start_empty_and_show_the_last_store,
    tables::windows_continue_after_a_restart,
    tables::cells_hold_up_to_their_limit,
    tables::incarnations_grow,
    lane::the_smallest_ring_wraps,
    lane::a_full_ring_refuses,
    lane::a_new_writer_is_never_mistaken_for_the_old,
    lane::a_wild_consumer_does_not_overwrite,
    lane::two_threads_agree,
    index::records_come_back_in_order,
    index::pages_are_used_again,
    index::a_full_index_says_so,
    index::a_restart_continues,
    index::a_dropped_chain_is_gone,
    index::a_truncated_chain_ends_where_asked,
    blog::what_is_committed_is_read_elsewhere,
    blog::a_block_stays_until_nobody_holds_it,
    blog::reservations_are_aligned_and_bounded,
    blog::the_last_reservation_can_be_given_back,
    blog::spans_slice_and_join,
    blog::recovery_finds_the_bytes,
    blog::wild_numbers_are_refused,
    blog::a_second_blog_panics,
}
