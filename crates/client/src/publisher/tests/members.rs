//! Brokers tell a publisher unasked who comes and goes.

use embar_wire::control::BrokerState;

use super::script::{A, B, Script, config, stored};
use crate::connection::ChannelId;
use crate::testing::{SECOND, cluster_now, goodbye};

const C: ChannelId = ChannelId(3);

#[test]
fn a_broker_that_joined_is_used_as_soon_as_another_tells_of_it() {
    let mut script = Script::open(config());
    script.tell(A, &cluster_now(3, |_| BrokerState::Ready));
    script.tick_at(script.now.0);
    script.open_lane(C);
    for number in 0..3 {
        script.submit(number);
    }
    assert!(
        [A, B, C]
            .iter()
            .all(|channel| script.sending(*channel).is_some())
    );
    let asked = script
        .sockets
        .channel(ChannelId::CONTROL)
        .connecting
        .clone();
    assert_eq!(asked, None, "nobody had to be asked");
}

#[test]
fn a_broker_that_left_is_not_looked_for_until_it_is_back() {
    let mut script = Script::open(config());
    script.submit(0);
    script.submit(1);
    let (number, _) = script.sending(A).expect("one each");
    script.sent(A);
    script.sent(B);
    script.ack(B, 0, &[3]);
    script.outcomes();
    script.feed(A, &goodbye());
    script.ack(A, 0, &[7]);
    let stored = (number, stored(A.0, 7));
    assert_eq!(script.outcomes(), [stored], "what it has is acknowledged");
    script.lose(A);
    let left = |id| match id == A.0 {
        true => BrokerState::Left,
        false => BrokerState::Ready,
    };
    script.tell(B, &cluster_now(2, left));
    script.tick_at(script.now.0 + 60 * SECOND);
    assert_eq!(script.sockets.channel(A).connecting, None);
    script.tell(B, &cluster_now(2, |_| BrokerState::Ready));
    script.tick_at(script.now.0);
    script.open_lane(A);
    script.submit(2);
    script.submit(3);
    assert!(
        [A, B]
            .iter()
            .all(|channel| script.sending(*channel).is_some())
    );
}
