@0xc8a1d5e37f604b92;
# How two ranks meet: three messages on a fresh connection, before any call. The rank that accepts speaks first.
#
#   acceptor  -> connector   Challenge
#   connector -> acceptor    Hello
#   acceptor  -> connector   Answer        refused: it closes the connection
#   rank 0    -> connector   World         when every rank has come; only rank 0 sends it
#
# A connector on the same machine may begin anew on a Unix socket after the Challenge.
#
# Then the same connection speaks Cap'n Proto RPC (peer.capnp), each side offering a `Peer`.
#
# A message here is at most 8 KiB in one segment (World: 1 MiB), and each is waited for a bounded time: a Hello for two seconds
# from the moment that the connection stands. Whoever joins proves that it knows the job's token without sending it: `proof`
# is an HMAC-SHA-256 under a key made from the token by Argon2id. Between ranks other than 0 the key is made from that one and
# `World.secret`. Without a token each side asks the system whether the other is a process of its own user.

struct Challenge {
  magic @0 :UInt64;     # 0x7073747261696e31: says that this is pstrain at all
  version @1 :UInt32;   # of this protocol; only equal ones talk to each other
  nonce @2 :Data;       # 32 random bytes

  unix @3 :Data;
  # To a connector on the same machine: 16 bytes that name a Unix socket, "pstrain-" and these as hexadecimal digits in the
  # abstract namespace, at which the acceptor waits, too. A connector that reaches it begins anew there, with a Challenge
  # without such a name, and closes this connection. Else null.
}

struct Hello {
  magic @0 :UInt64;
  version @1 :UInt32;
  nonce @2 :Data;       # 32 random bytes of the connector

  rank @3 :UInt32;
  worldSize @4 :UInt32;
  jobHash @5 :Data;     # 32 bytes: SHA-256 of the job as resolved
  name @6 :Text;        # as in "trainer2"; at most 256 bytes, as are the next two
  role @7 :Text;
  address @8 :Text;     # host:port at which this rank accepts others
  transports @9 :UInt32; # by which it can receive large tensors: bit 0 inline, 1 cma, 2 shm, 3 bulk

  proof @10 :Data;
  # 32 bytes: HMAC(key, "hello", acceptor's nonce, this nonce, `rank`, `worldSize`, `jobHash`, `jobKeys`, `name`, `role`,
  # `address`, `transports`)

  jobKeys @11 :Data;
  # For each key of the job, at most 512, four bytes of SHA-256 of its path and four of its value: so that an acceptor
  # with another job can say which of its own keys differ.
}

struct Answer {
  union {
    accepted :group {
      proof @0 :Data;   # 32 bytes: HMAC(key, "accepted", connector's nonce, acceptor's nonce, transports)
      transports @1 :UInt32; # those of both sides
    }
    refused @2 :Refusal;
  }
}

struct Refusal {
  reason @0 :Reason;
  message @1 :Text;     # for a person: what was expected and what came

  proof @2 :Data;
  # In an Answer to a connector that has proven itself, 32 bytes: HMAC(key, "refused", connector's nonce, acceptor's nonce,
  # message). Else null: a connector does not believe it further than that somebody said so.
}

enum Reason {
  version @0;
  token @1;
  job @2;
  worldSize @3;
  rankOutOfRange @4;
  rankTaken @5;
  notExpected @6;  # this rank takes no (more) connections from that one
  timeout @7;      # not all ranks came in time
  otherUser @8;    # there is no token, and it is of another user
}

struct World {
  # Everyone, in the order of ranks.
  union {
    complete :group {
      members @0 :List(Member);
      secret @1 :Data;  # 32 bytes: the key for connections between ranks other than 0
    }
    refused @2 :Refusal;
  }
}

struct Member {
  rank @0 :UInt32;
  name @1 :Text;
  role @2 :Text;
  address @3 :Text;
}
