@0xa94e60d2b7c81f35;
# What one rank offers another. Each side of a connection has the other's `Peer` as its bootstrap capability.

using Value = import "value.capnp";

interface Peer {
  call @0 (requests :List(Request)) -> (replies :List(Reply));
  # Runs the methods, which start in the order of the requests, and answers with what they returned, one reply for each
  # request, when all are done. At most 64 requests, which are one message to the limits of value.capnp. At most 1024
  # requests (with `create`) of one peer are under way. A caller that gives up does not stop a method.

  create @1 (id :Value.ObjectId, request :Request) -> (reference :Value.Reference);
  # Makes an object named by the caller and answers at once; the object is filled with what the method returns.
  # `id.rank` must be the caller.

  retain @2 (id :Value.ObjectId) -> (reference :Value.Reference);
  # A reference of the caller's own to an object that lives here. Fails with `gone` when it does not.

  heartbeat @3 (doing :Text, standing :Standing) -> ();
  # `standing` is for rank 0, and null elsewhere. Sent at least every `heartbeat`. A rank from which nothing at all came for `lost_after` is lost. `doing`: what the sender
  # is busy with, at most 256 bytes, for the report about a lost rank; soon after it has changed one is sent at once.

  barrier @4 (name :Text) -> (failure :Value.Failure);
  # Rank 0 only: answers when every rank has come to the barrier of this name. A rank waits at up to 1024 of them.

  end @5 (ending :Ending) -> ();
  # The mesh is over. The first such message counts; the receiver ends its own mesh with the same reason.

  showNonce @6 (nonce :Data) -> (process :UInt32, address :UInt64);
  # Puts `nonce`, 32 bytes, where the caller can find it: at `address` of process `process`, until it is asked again.
  # A caller on the same host that reads it there knows that it can read that process's memory.

  dial @8 (port :UInt16, token :Data) -> ();
  # Connects to this port of the caller's host, where it waits for 32 bytes, `token`; after these the callee sends there
  # the tensors that go by `Transfer`. A connection has one second connection in each direction.

  shareMemory @9 (process :UInt32, file :UInt32, nonce :Data) -> ();
  # The caller shares memory: it is file descriptor `file` of its process `process`, sealed against growing and
  # shrinking, eight slots of 256 KiB, and begins with `nonce`, 32 bytes. From now on the callee writes there.

  sendBy @7 (transport :UInt32) -> ();
  # From now on the callee sends tensors that do not fit into a message by this transport, one of those that both sides
  # take, by its bit in `transports` of join.capnp.
}

struct Standing {
  # Whether a rank moves on, and what it stands at.
  progress @0 :UInt64;  # grows as it does
  at @1 :At;
  rank @2 :UInt32;      # whom it calls, or for whom it serves
  method @3 :Text;      # of the call, or the barrier's name; at most 256 bytes
  forMs @4 :UInt64;     # how long it has stood there
  inGroup @5 :Bool;     # it may wait for others in a process group, too
}

enum At {
  working @0;    # at work of its own, as far as the mesh knows
  calling @1;    # a call of its own is not answered
  barrier @2;    # at a barrier
  serving @3;    # a call of another rank is served, and waits for something
  computing @4;  # a call of another rank is served, and computes
}

struct Request {
  method @0 :Text;      # at most 256 bytes
  message @1 :Value.Message;
}

struct Reply {
  union {
    message @0 :Value.Message;
    failure @1 :Value.Failure;
  }
}

struct Ending {
  cause @0 :Cause;
  rank @1 :UInt32;      # which rank was lost, or ended the job
  doing @2 :Text;       # what that rank last said it was doing
  why @3 :Text;         # for a person; at most 8 KiB
  saidBeforeMs @4 :UInt32 = 0xffffffff;
  # How long before its loss it said what it was doing; the largest number: it is the one that ended the job. Who knows
  # of something it said later takes that.
}

enum Cause {
  disconnected @0;  # its connection broke
  silent @1;        # nothing came from it for `lost_after`
  aborted @2;       # it ended the job itself
  stalled @3;       # nothing moved in the job, and the others wait for it
}
