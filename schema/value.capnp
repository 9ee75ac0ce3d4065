@0xe1f3b7a94c5d2806;
# What a call carries: values, tensors, and references to objects of other ranks.
#
# A receiver trusts no number in here: it checks each against its own limits before it allocates anything.

struct Message {
  values @0 :List(Value);
  # At most 16,384 values, those inside lists counted too. All payloads of a message together are at most
  # `max_payload_bytes` of the receiver.

  context @1 :ContextId;
  # The autograd context that the call belongs to; null: none.
}

struct ContextId {
  # One context of distributed autograd, the same on every rank that it touches.
  rank @0 :UInt32;    # the rank that opened it
  number @1 :UInt64;  # counted by that rank
}

struct Value {
  union {
    nil @0 :Void;
    bool @1 :Bool;
    int @2 :Int64;
    float @3 :Float64;
    text @4 :Blob;          # UTF-8
    bytes @5 :Blob;
    tensor @6 :Tensor;
    ref @7 :ObjectRef;
    list @8 :List(Value);   # at most 16 deep
    sparse @9 :Sparse;
  }
}

struct Blob {
  len @0 :UInt64;      # bytes
  payload @1 :Payload;
}

struct Tensor {
  # Dense, on the CPU, row-major without gaps, little-endian. The elements of an empty tensor take no bytes.
  dtype @0 :DType;
  shape @1 :List(Int64);  # at most 16 dimensions, none negative
  len @2 :UInt64;         # bytes: elements times the size of one, nothing else is taken
  payload @3 :Payload;

  hasEdge @4 :Bool;
  edge @5 :UInt64;
  # The autograd edge that this tensor travels over. Opaque to the mesh.
}

struct Sparse {
  # A sparse tensor (COO). A receiver believes neither that the parts fit together nor that the indices are inside.
  indices @0 :Tensor;     # int64: sparse dimensions, entries
  values @1 :Tensor;      # entries, dense dimensions ...
  shape @2 :List(Int64);  # at most 16 dimensions, none negative
  coalesced @3 :Bool;     # no index twice, and all in order

  hasEdge @4 :Bool;
  edge @5 :UInt64;
  # As of a dense tensor. Those of the parts mean nothing.
}

enum DType {
  uint8 @0;
  int8 @1;
  int16 @2;
  int32 @3;
  int64 @4;
  float16 @5;
  float32 @6;
  float64 @7;
  bfloat16 @8;
  bool @9;
  complex32 @10;
  complex64 @11;
  complex128 @12;
  float8e5m2 @13;
  float8e4m3fn @14;
  float8e5m2fnuz @15;
  float8e4m3fnuz @16;
}

struct Payload {
  # How the bytes travel. Which transports a connection may use is settled when it is made (`transports` in join.capnp);
  # a receiver refuses any other. The sender keeps the bytes as they are until the receiver releases them, or where the
  # transport says so has answered.
  union {
    inline @0 :Inline;
    cma @1 :Cma;
    shm @2 :Shm;
    bulk @3 :Bulk;
  }
}

struct Inline {
  # On the connection of the call itself.
  union {
    data @0 :Data;
    # In the message: all such data of a message together are at most 256 KiB.

    source @1 :Source;
    # To be fetched in pieces.
  }
}

interface Source {
  # The bytes of one payload, at the sender. They stay in place until this capability is released, be it because
  # the receiver has them all or because the connection broke.

  read @0 (offset :UInt64, len :UInt32) -> (data :Data);
  # Exactly `len` bytes from `offset`. `len` is at most 256 KiB, and a receiver has at most 8 reads of one payload
  # under way, so that a small call never waits behind a large tensor.

  readTo @1 (offset :UInt64, len :UInt32, slot :UInt32) -> ();
  # The same, into a slot of the memory that the receiver has shared.
}

struct Cma {
  # Same host: read out of the sender's memory by process_vm_readv, if its process has proven itself (`Peer.showNonce`).
  # Tensors only.
  address @0 :UInt64;

  pin @1 :Pin;
  # In a request of `Peer.call`: null, and the sender keeps the bytes until the call is answered.
}

struct Shm {
  # Same host: read in pieces, through memory that the receiver has shared (`Peer.shareMemory`). Tensors only.
  source @0 :Source;
}

struct Bulk {
  # Another host: on a second connection (`Peer.dial`). Tensors only.
  transfer @0 :Transfer;
}

interface Pin {}
# Keeps the sender's bytes in place until it is released.

interface Transfer {
  # Keeps the sender's bytes in place, too.

  start @0 (number :UInt64) -> ();
  # Sends them: on the second connection come `number`, the number of bytes, both little-endian, and the bytes. Answers
  # when they are queued. Once for each payload; a receiver has at most 8 under way.
}

struct ObjectRef {
  # An object that lives on rank `owner`. The sender holds its own reference at least as long as `fork` is held, so
  # the object is there when the receiver asks for it.
  owner @0 :UInt32;
  id @1 :ObjectId;

  fork @2 :Reference;
  # From the owner itself: the receiver's reference. From another rank: only keeps that rank's reference; the
  # receiver asks the owner for one of its own (`Peer.retain`), then releases this. To the owner, in a request: null;
  # the sender keeps its reference until it is answered, and the owner looks the object up by id. In a reply, which
  # nothing answers, it is there: looked up, then released.
}

struct ObjectId {
  rank @0 :UInt32;    # that named the object: its owner, or the rank that called `Peer.create`
  number @1 :UInt64;  # counted by that rank
}

interface Reference {
  # While one is held the object lives. It is released by the last holder, or when the connection to it breaks.

  filled @0 () -> (failure :Failure);
  # Answers when the object has got its value, or with why it never will.
}

struct Failure {
  # Why a call gave no result. Null where there was none.
  kind @0 :FailureKind;
  message @1 :Text;  # at most 8 KiB
}

enum FailureKind {
  remote @0;    # the method said so
  panicked @1;  # the method panicked
  noMethod @2;  # no such method at the callee
  tooLarge @3;  # a limit was passed
  badValue @4;  # a value cannot be sent or is not what was announced
  busy @5;      # too many calls under way
  timeout @6;
  lost @7;      # a rank on the way was lost
  aborted @8;   # the job was ended
  shutdown @9;  # the mesh has been shut down
  gone @10;     # the object does not exist any more
}
