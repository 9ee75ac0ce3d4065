//! Which form the tensors on a connection take: each rank tries what could bring those of a peer fastest, and tells the
//! peer to send by the first that works.

use std::io;
use std::rc::Rc;

use futures::future::join_all;
use rand::TryRng;
use rand::rngs::SysRng;

use super::Net;
use super::link::Link;
use crate::rpc::error::{CallError, CallErrorKind};
use crate::rpc::memory;
use crate::rpc::payload::{Form, Lender};

/// Random bytes that only the peer has been told.
pub(super) type Nonce = [u8; 32];

impl Net {
    pub(super) async fn choose_forms(self: &Rc<Net>) {
        let links = self.links();
        join_all(links.iter().map(|link| self.choose_form(link))).await;
    }

    async fn choose_form(&self, link: &Link) {
        let mut chosen = Form::Inline;
        for form in Form::BY_SPEED.into_iter().filter(|form| link.forms.has(*form)) {
            match prepare(link, form).await {
                Ok(()) => {
                    chosen = form;
                    break;
                }
                Err(why) => {
                    tracing::info!("tensors of {} do not come by {form}: {why}", self.name_of(link.rank))
                }
            }
        }
        if chosen == Form::Inline {
            return;
        }
        tracing::debug!("tensors of {} come by {chosen}", self.name_of(link.rank));
        let mut request = link.peer.send_by_request();
        request.get().set_form(chosen.bit());
        // Should it fail, the connection has failed, or the peer goes on as before.
        let _ = request.send().promise.await;
    }
}

/// Makes this rank ready to take tensors of the peer in this form, if they can come in it.
async fn prepare(link: &Link, form: Form) -> Result<(), CallError> {
    match form {
        Form::Inline => Ok(()),
        Form::Cma => {
            let process = proven_process(link).await?;
            link.lender.set(Lender { process: Some(process) });
            Ok(())
        }
    }
}

/// The process of the peer, if this rank can read its memory (P-7).
async fn proven_process(link: &Link) -> Result<u32, CallError> {
    let no = |why: &str| CallError::failed(why);
    if !link.same_host {
        return Err(no("it is on another host"));
    }
    let mut nonce = Nonce::default();
    SysRng.try_fill_bytes(&mut nonce).map_err(CallError::failed)?;
    let mut request = link.peer.lend_request();
    request.get().set_nonce(&nonce);
    let response = request.send().promise.await?;
    let response = response.get()?;
    let process = response.get_process();
    if process == std::process::id() {
        return Err(no("it says that it is this process"));
    }
    let mut found = Nonce::default();
    memory::peek(process, response.get_address(), &mut found).map_err(refused)?;
    match found == nonce {
        true => Ok(process),
        false => Err(no("something else is in its memory")),
    }
}

fn refused(error: io::Error) -> CallError {
    CallError::failed(format_args!("process_vm_readv: {error}"))
}

pub(super) fn nonce_of(bytes: &[u8]) -> Result<Nonce, capnp::Error> {
    bytes.try_into().map_err(|_| capnp::Error::failed(format!("a nonce of {} bytes", bytes.len())))
}

impl Link {
    /// Sends tensors as the peer has asked for it.
    pub fn send_by(&self, form: u32) -> Result<(), CallError> {
        let asked = Form::BY_SPEED.into_iter().find(|known| known.bit() == form && self.forms.has(*known));
        let asked = asked.ok_or_else(|| {
            let message = format_args!("form {form} is not one that both sides take");
            CallError::of_kind(CallErrorKind::BadValue, message)
        })?;
        self.form.set(asked);
        Ok(())
    }
}
