//! Who is who in a mesh.

use crate::topology::Rank;

/// A rank as the others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub rank: Rank,
    pub name: String,
    pub role: String,
    /// `host:port` at which it accepts other ranks.
    pub address: String,
}

impl Peer {
    /// The host in its address.
    pub(in crate::rpc) fn host(&self) -> &str {
        self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host)
    }
}
