# What is sent by Cap'n Proto.
@0xd3f1b7a2c86e5094;

struct Ping {
  sequence @0 :UInt64;  # from 1
  payload @1 :Data;
}

interface Peer {
  # It comes back.
  echo @0 (ping :Ping) -> (ping :Ping);
  # It does not: at the end there is a count.
  oneWay @1 (ping :Ping) -> stream;
  # How many came since the last count, each next in sequence.
  count @2 () -> (pings :UInt64);
}
