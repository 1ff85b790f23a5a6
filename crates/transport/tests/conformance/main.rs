//! What every reactor must do, checked with real sockets. A new reactor adds one line at the end.

mod driver;
mod ending;
mod log;
mod many;
mod opening;
mod receiving;
mod sending;
mod waking;

use embar_transport::{Epoll, Mapped, Reactor};

/// A kind of reactor under test.
pub trait Kind {
    /// Its type.
    type Reactor: Reactor<Mapped>;

    /// A new one.
    fn make() -> Self::Reactor;
}

struct OnEpoll;

impl Kind for OnEpoll {
    type Reactor = Epoll;

    fn make() -> Epoll {
        Epoll::new().expect("an epoll reactor")
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
                    an_urgent_byte_does_not_stall_what_follows
                    a_receive_into_the_log_lands_in_place
                }
                sending {
                    a_small_send_arrives
                    an_empty_send_completes
                    a_send_larger_than_the_socket_waits_for_the_reader
                    two_parts_arrive_in_order_wherever_the_kernel_cuts_them
                    spans_of_the_log_are_sent_in_place
                    both_directions_work_at_once
                }
                ending {
                    a_peer_that_half_closes_still_receives
                    our_half_close_still_receives
                    a_reset_fails_the_receive_and_later_sends
                    a_reset_fails_a_send_that_waits_for_room
                    closing_gives_outstanding_buffers_back
                    a_stale_token_touches_nobody
                    dropping_the_reactor_frees_what_is_outstanding
                }
                opening {
                    a_listener_accepts_and_another_reactor_may_serve
                    peers_that_came_before_the_listener_was_added_are_accepted
                    a_closed_listener_accepts_no_more
                    a_connect_completes_and_carries_early_buffers
                    a_refused_connect_tells_so_and_gives_buffers_back
                    a_connect_can_be_given_up
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
                    idle_connections_cost_no_calls
                }
            }
        }
    };
}

conformance!(epoll, super::OnEpoll);
