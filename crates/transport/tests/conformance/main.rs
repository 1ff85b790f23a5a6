//! What every reactor must do, checked with real sockets. A new reactor adds one line at the end.

#![allow(
    clippy::result_large_err,
    reason = "a completion that is not the wanted one is handed back as it is"
)]

mod driver;
mod ending;
mod gathering;
mod log;
mod many;
mod opening;
mod receiving;
mod sending;
mod shared;
mod sockets;
mod waking;

use embar_transport::{Blocking, Epoll, Mapped, Reactor, SocketOptions, Stream, Uring};

/// A kind of reactor under test.
pub trait Kind {
    /// Its type.
    type Reactor: Reactor<Mapped>;

    /// A new one.
    fn make() -> Self::Reactor;

    /// Both ends of a connection.
    fn pair() -> (Stream, Stream);
}

struct EpollTcp;

impl Kind for EpollTcp {
    type Reactor = Epoll;

    fn make() -> Epoll {
        Epoll::new().expect("an epoll reactor")
    }

    fn pair() -> (Stream, Stream) {
        driver::tcp_pair()
    }
}

struct EpollUnix;

impl Kind for EpollUnix {
    type Reactor = Epoll;

    fn make() -> Epoll {
        EpollTcp::make()
    }

    fn pair() -> (Stream, Stream) {
        driver::unix_pair()
    }
}

struct EpollShm;

impl Kind for EpollShm {
    type Reactor = Epoll;

    fn make() -> Epoll {
        EpollTcp::make()
    }

    fn pair() -> (Stream, Stream) {
        driver::shm_pair()
    }
}

struct EpollShmNarrow;

impl Kind for EpollShmNarrow {
    type Reactor = Epoll;

    fn make() -> Epoll {
        EpollTcp::make()
    }

    fn pair() -> (Stream, Stream) {
        driver::narrow_shm_pair()
    }
}

struct EpollShmSpinning;

impl Kind for EpollShmSpinning {
    type Reactor = Epoll;

    fn make() -> Epoll {
        EpollSpinning::make()
    }

    fn pair() -> (Stream, Stream) {
        driver::shm_pair()
    }
}

struct BlockingShm;

impl Kind for BlockingShm {
    type Reactor = Blocking;

    fn make() -> Blocking {
        BlockingTcp::make()
    }

    fn pair() -> (Stream, Stream) {
        driver::shm_pair()
    }
}

/// Spinning must change nothing but the time.
struct EpollSpinning;

impl Kind for EpollSpinning {
    type Reactor = Epoll;

    fn make() -> Epoll {
        let mut epoll = EpollTcp::make();
        epoll.set_spin(std::time::Duration::from_micros(200));
        epoll
    }

    fn pair() -> (Stream, Stream) {
        driver::tcp_pair()
    }
}

struct BlockingTcp;

impl Kind for BlockingTcp {
    type Reactor = Blocking;

    fn make() -> Blocking {
        Blocking::new().expect("a reactor with blocking receives")
    }

    fn pair() -> (Stream, Stream) {
        driver::tcp_pair()
    }
}

struct BlockingUnix;

impl Kind for BlockingUnix {
    type Reactor = Blocking;

    fn make() -> Blocking {
        BlockingTcp::make()
    }

    fn pair() -> (Stream, Stream) {
        driver::unix_pair()
    }
}

struct UringTcp;

impl Kind for UringTcp {
    type Reactor = Uring;

    fn make() -> Uring {
        Uring::new().expect("an io_uring reactor")
    }

    fn pair() -> (Stream, Stream) {
        driver::tcp_pair()
    }
}

struct UringUnix;

impl Kind for UringUnix {
    type Reactor = Uring;

    fn make() -> Uring {
        UringTcp::make()
    }

    fn pair() -> (Stream, Stream) {
        driver::unix_pair()
    }
}

/// Rings that overflow all the time lose nothing.
struct UringTiny;

impl Kind for UringTiny {
    type Reactor = Uring;

    fn make() -> Uring {
        Uring::with_sizes(SocketOptions::default(), 2, 2).expect("an io_uring reactor")
    }

    fn pair() -> (Stream, Stream) {
        driver::tcp_pair()
    }
}

macro_rules! tests {
    ($kind:ty: $($module:ident { $($test:ident)* })*) => {
        $($(
            #[test]
            fn $test() {
                super::$module::$test::<$kind>();
            }
        )*)*
    };
}

/// What holds for every kind of socket.
macro_rules! conformance {
    ($name:ident, $kind:ty) => {
        mod $name {
            tests! { $kind:
                receiving {
                    a_receive_waits_for_bytes_and_takes_what_is_there
                    bytes_that_came_before_the_receive_are_found
                    a_large_buffer_fills_over_many_bursts
                    every_burst_after_a_short_receive_is_noticed
                    the_end_is_told_after_the_last_byte_and_again
                    the_end_is_found_in_small_steps_after_its_edge_was_taken
                    a_recalled_receive_comes_back_with_what_it_has
                    a_receive_into_the_log_lands_in_place
                    a_receive_into_a_ring_shows_what_came_and_no_more
                    what_follows_the_first_part_lands_in_the_second
                    a_peer_that_sends_a_byte_at_a_time_fills_what_is_wanted
                    wanted_bytes_end_with_the_stream
                    no_more_is_wanted_than_may_come
                    a_recalled_receive_that_wants_more_keeps_what_came
                    bytes_wait_while_there_is_no_buffer_for_them
                }
                sending {
                    a_small_send_arrives
                    an_empty_send_completes
                    a_send_larger_than_the_socket_waits_for_the_reader
                    two_parts_arrive_in_order_wherever_the_kernel_cuts_them
                    spans_of_the_log_are_sent_in_place
                    what_a_ring_has_ready_goes_out_before_its_body_and_frees_its_room
                    an_aborted_span_stays_queued
                    both_directions_work_at_once
                    a_peer_that_never_reads_stops_nobody_else
                }
                gathering {
                    pieces_leave_by_one_call_wherever_they_were_cut
                    own_pieces_come_back_when_all_are_sent
                    foreign_pieces_come_back_after_each_step
                    closing_between_steps_sends_no_more
                }
                ending {
                    a_peer_that_half_closes_still_receives
                    our_half_close_still_receives
                    closing_gives_outstanding_buffers_back
                    a_stale_token_touches_nobody
                    dropping_the_reactor_frees_what_is_outstanding
                    dropping_it_with_hundreds_in_flight_frees_them_all
                    memory_that_came_back_is_not_written_again
                }
                waking {
                    a_poll_without_events_ends_in_time
                    a_wake_ends_a_wait_without_limit
                    a_wake_before_the_poll_is_kept_and_told_once
                    no_wake_is_lost_between_queue_and_sleep
                    a_busy_reactor_still_hears_its_waker
                }
                many {
                    a_thousand_connections_each_get_their_own_bytes
                    a_busy_connection_starves_nobody
                }
            }
        }
    };
}

/// What concerns TCP, or no socket in particular.
macro_rules! conformance_tcp {
    ($name:ident, $kind:ty) => {
        mod $name {
            tests! { $kind:
                receiving {
                    an_urgent_byte_does_not_stall_what_follows
                }
                ending {
                    a_reset_fails_the_receive_and_later_sends
                    a_reset_fails_a_send_that_waits_for_room
                }
                opening {
                    a_listener_accepts_and_another_reactor_may_serve
                    peers_that_came_before_the_listener_was_added_are_accepted
                    a_closed_listener_accepts_no_more
                    a_connect_completes_and_carries_early_buffers
                    a_refused_connect_tells_so_and_gives_buffers_back
                    a_connect_can_be_given_up
                }
            }
        }
    };
}

macro_rules! conformance_unix {
    ($name:ident, $kind:ty) => {
        mod $name {
            tests! { $kind:
                sockets {
                    a_socket_file_is_listened_on_connected_to_and_removed
                    a_connect_to_a_missing_socket_file_tells_so
                }
            }
        }
    };
}

macro_rules! conformance_shm {
    ($name:ident, $kind:ty) => {
        mod $name {
            tests! { $kind:
                shared {
                    a_socket_file_joins_both_sides_by_memory
                    a_connect_to_a_missing_file_tells_so
                    a_listener_that_never_says_hello_keeps_a_connect_waiting
                    a_connect_ends_with_a_listener_that_leaves
                    a_stranger_on_the_socket_is_refused
                    a_peer_that_says_nothing_and_leaves_ended
                    what_was_published_before_the_end_is_received
                    an_end_without_what_was_sent_being_taken_is_a_reset
                    a_sleeping_pair_talks
                }
            }
        }
    };
}

/// What costs nothing while nothing spins.
macro_rules! conformance_quiet {
    ($name:ident, $kind:ty) => {
        mod $name {
            tests! { $kind:
                many {
                    idle_connections_cost_no_calls
                }
            }
        }
    };
}

conformance!(epoll, super::EpollTcp);
conformance_tcp!(epoll_tcp, super::EpollTcp);
conformance_quiet!(epoll_quiet, super::EpollTcp);
conformance!(epoll_over_unix, super::EpollUnix);
conformance_unix!(epoll_unix, super::EpollUnix);
conformance_quiet!(epoll_quiet_unix, super::EpollUnix);
conformance!(epoll_spinning, super::EpollSpinning);
conformance_tcp!(epoll_spinning_tcp, super::EpollSpinning);
conformance!(blocking, super::BlockingTcp);
conformance_tcp!(blocking_tcp, super::BlockingTcp);
conformance_quiet!(blocking_quiet, super::BlockingTcp);
conformance!(blocking_over_unix, super::BlockingUnix);
conformance_unix!(blocking_unix, super::BlockingUnix);
conformance_quiet!(blocking_quiet_unix, super::BlockingUnix);
conformance!(uring, super::UringTcp);
conformance_tcp!(uring_tcp, super::UringTcp);
conformance_quiet!(uring_quiet, super::UringTcp);
conformance!(uring_over_unix, super::UringUnix);
conformance_unix!(uring_unix, super::UringUnix);
conformance_quiet!(uring_quiet_unix, super::UringUnix);
conformance!(uring_tiny, super::UringTiny);
conformance_tcp!(uring_tiny_tcp, super::UringTiny);
conformance!(epoll_over_shm, super::EpollShm);
conformance_shm!(epoll_shm, super::EpollShm);
conformance_quiet!(epoll_quiet_shm, super::EpollShm);
conformance!(epoll_over_narrow_shm, super::EpollShmNarrow);
conformance!(epoll_spinning_over_shm, super::EpollShmSpinning);
conformance_shm!(epoll_spinning_shm, super::EpollShmSpinning);
conformance!(blocking_over_shm, super::BlockingShm);
conformance_shm!(blocking_shm, super::BlockingShm);
