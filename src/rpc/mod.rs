//! The rank mesh: rendezvous, calls, RRefs, payloads, heartbeat. Cap'n Proto types stay in here.
