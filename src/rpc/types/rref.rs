//! References to objects of other ranks.
//!
//! An [`RRef`] at the owner holds the object. Anywhere else it stands for a `Reference` capability of the owner, which
//! holds an `RRef` there. So an object lives as long as somebody has an `RRef` to it, and the references of a rank
//! that is lost go with its connection.
//!
//! a fork is never the only holder: its sender's `RRef` is held until the receiver has let go of the fork, and
//! the receiver does so only when it has a reference of its own. A request to the object's owner carries no fork: its
//! sender holds the `RRef` until the answer.
//! an `RRef` travels only when its owner is known to have the object.
//! the table of objects is never locked while an object is dropped.

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::watch;

use super::error::{CallError, CallErrorKind};
use super::release::{Release, Releases};
use crate::topology::Rank;

/// Names an object in the whole world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// The rank that named it: its owner, or the rank that asked for it by `remote`.
    pub rank: Rank,
    /// Counted by that rank.
    pub number: u64,
}

impl ObjectId {
    /// Keys of references that came in messages are counted apart from those that this rank asked for, whose key is the
    /// object's number.
    pub(crate) const RECEIVED: u64 = 1 << 63;
}

type Content = Arc<dyn Any + Send + Sync>;
type Outcome = Result<Content, CallError>;

/// The objects that live on this rank.
#[derive(Clone)]
pub struct Objects(Arc<Table>);

struct Table {
    rank: Rank,
    next: AtomicU64,
    live: Mutex<HashMap<ObjectId, Weak<Object>>>,
}

pub(crate) struct Object {
    id: ObjectId,
    table: Arc<Table>,
    /// Written once, by whoever fills the object or by the end of the mesh.
    slot: watch::Sender<Option<Outcome>>,
}

impl Objects {
    pub(crate) fn new(rank: Rank) -> Objects {
        Objects(Arc::new(Table { rank, next: AtomicU64::new(0), live: Mutex::default() }))
    }

    /// Keeps `object` here for as long as anybody holds the `RRef` or one made from it.
    pub fn insert<T: Any + Send + Sync>(&self, object: Arc<T>) -> RRef {
        let rref = self.reserve(self.next_id()).expect("numbers are counted");
        rref.fill(Ok(object));
        rref
    }

    /// Objects that somebody holds.
    pub fn len(&self) -> usize {
        self.0.live().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn next_id(&self) -> ObjectId {
        ObjectId { rank: self.0.rank, number: self.0.next.fetch_add(1, Ordering::Relaxed) }
    }

    /// An object without content yet. None: there is one of this id.
    pub(crate) fn reserve(&self, id: ObjectId) -> Option<RRef> {
        match self.0.live().entry(id) {
            Entry::Occupied(_) => None,
            Entry::Vacant(place) => {
                let object = Arc::new(Object { id, table: self.0.clone(), slot: watch::Sender::new(None) });
                place.insert(Arc::downgrade(&object));
                Some(RRef(Arc::new(Handle::Here(object))))
            }
        }
    }

    pub(crate) fn get(&self, id: ObjectId) -> Option<RRef> {
        let object = self.0.live().get(&id).and_then(Weak::upgrade)?;
        Some(RRef(Arc::new(Handle::Here(object))))
    }

    /// Objects that nobody will fill any more fail, so that nobody waits for them.
    pub(crate) fn fail_unfilled(&self, error: &CallError) {
        let live: Vec<_> = self.0.live().values().filter_map(Weak::upgrade).collect();
        for object in live {
            object.fill(Err(error.clone()));
        }
    }
}

impl Table {
    fn live(&self) -> MutexGuard<'_, HashMap<ObjectId, Weak<Object>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object {
    fn fill(&self, outcome: Outcome) {
        self.slot.send_if_modified(|slot| {
            let empty = slot.is_none();
            if empty {
                *slot = Some(outcome);
            }
            empty
        });
    }

    async fn filled(&self) -> Outcome {
        let mut slot = self.slot.subscribe();
        let outcome = slot.wait_for(Option::is_some).await.expect("`self` holds the sender");
        outcome.clone().expect("waited for")
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let mut live = self.table.live();
        // The id may have been reserved anew since the last holder let go.
        if live.get(&self.id).is_some_and(|object| object.strong_count() == 0) {
            live.remove(&self.id);
        }
    }
}

/// A reference to an object of some rank. A clone is another holder; when the last holder anywhere lets go, the object
/// is dropped. Travels in a [`Value`](crate::rpc::Value).
#[derive(Clone)]
pub struct RRef(Arc<Handle>);

enum Handle {
    Here(Arc<Object>),
    There(Held),
}

/// A reference to another rank's object: the capability itself lives on the RPC thread, under `key`.
pub(crate) struct Held {
    pub owner: Rank,
    pub id: ObjectId,
    pub key: u64,
    pub releases: Releases,
    /// The request for the object could not even be sent.
    pub failed: Option<CallError>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.releases.send(Release::Reference { key: self.key });
    }
}

impl RRef {
    pub(crate) fn there(held: Held) -> RRef {
        RRef(Arc::new(Handle::There(held)))
    }

    /// The rank on which the object lives.
    pub fn owner(&self) -> Rank {
        match &*self.0 {
            Handle::Here(object) => object.table.rank,
            Handle::There(held) => held.owner,
        }
    }

    pub fn id(&self) -> ObjectId {
        match &*self.0 {
            Handle::Here(object) => object.id,
            Handle::There(held) => held.id,
        }
    }

    /// The object, once it is filled. Only at its owner.
    ///
    /// # Errors
    /// `Gone` on another rank; `BadValue` when it is not a `T`; what went wrong with the method that was to fill it.
    pub async fn local<T: Any + Send + Sync>(&self) -> Result<Arc<T>, CallError> {
        let Handle::Here(object) = &*self.0 else { return Err(self.elsewhere()) };
        // Most are filled: no wait, no wake-up.
        let now = object.slot.borrow().clone();
        let outcome = match now {
            Some(outcome) => outcome,
            None => object.filled().await,
        };
        outcome?.downcast::<T>().map_err(|_| {
            CallError::of_kind(
                CallErrorKind::BadValue,
                format_args!("the object is not a {}", std::any::type_name::<T>()),
            )
        })
    }

    fn elsewhere(&self) -> CallError {
        CallError::of_kind(
            CallErrorKind::Gone,
            format_args!(
                "the object lives on rank {}\n  hint: call a method there and pass it the RRef",
                self.owner()
            ),
        )
    }

    pub(crate) fn fill(&self, outcome: Outcome) {
        match &*self.0 {
            Handle::Here(object) => object.fill(outcome),
            Handle::There(_) => unreachable!("only the owner fills an object"),
        }
    }

    /// Waits until it is filled. Only at its owner; elsewhere the capability must be asked, by [`key`](RRef::key).
    ///
    /// # Errors
    /// `Gone` on another rank; what went wrong with the method that was to fill it.
    pub(crate) async fn filled(&self) -> Result<(), CallError> {
        match &*self.0 {
            Handle::Here(object) => object.filled().await.map(|_| ()),
            Handle::There(_) => Err(self.elsewhere()),
        }
    }

    /// What the object holds, filled by now.
    pub(crate) fn content(&self) -> Option<Outcome> {
        match &*self.0 {
            Handle::Here(object) => object.slot.borrow().clone(),
            Handle::There(_) => None,
        }
    }

    /// Under which the RPC thread holds the capability. None: the object lives here.
    pub(crate) fn key(&self) -> Option<u64> {
        match &*self.0 {
            Handle::Here(_) => None,
            Handle::There(held) => Some(held.key),
        }
    }

    /// # Errors
    /// The object was never asked for, because its request could not be sent.
    pub(crate) fn sendable(&self) -> Result<(), CallError> {
        match &*self.0 {
            Handle::There(Held { failed: Some(error), .. }) => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for RRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ObjectId { rank, number } = self.id();
        write!(f, "RRef({rank}.{number} on rank {})", self.owner())
    }
}
