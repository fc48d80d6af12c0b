//! The mailbox of a courier on another machine: a copy in the home directory, read like the
//! mailbox of a courier on this machine.
//!
//! Mailbox files are read without async code, so a thread of its own makes the requests.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use monoco_core::claim::Workspace;
use monoco_core::did::{Did, InvalidDid};
use monoco_core::mail::{MailId, digest};
use monoco_core::object::{ObjId, ObjKind};
use monoco_fs::FileOptions;
use serde_json::{Value, json};

use super::claim_lookup::MAX_MAILS_PER_REQUEST;
use crate::cli::client::{Client, segment};
use crate::cli::failure::{CliError, CliExit};
use crate::cli::remote::RemoteCourier;
use monoco_courier::api::FILES_PATH;
use monoco_courier::api::views::mails::{MailFileList, MailFileView, MailIndexPage};
use monoco_courier::api::views::tokens::CallerView;
use monoco_courier::home::Home;
use monoco_mailbox::mirror::{MailboxSource, SourceError, SourceFile, SourceIndexPage};

/// Code of the error of a request that was not answered before the command had to end.
pub const TIMEOUT_CODE: &str = "timeout";

/// A courier on another machine, with the rights of the token.
pub struct RemoteMailbox {
    requests: Arc<RemoteRequests>,
    pub workspace: Workspace,
    /// The author of all messages that are sent.
    pub did: Did,
    /// Where the copy is.
    root: PathBuf,
}

/// Gets what the copy needs.
struct RemoteRequests {
    sender: Mutex<Sender<BlockingRequest>>,
    /// When the command ends, whether or not the courier has answered.
    deadline: Option<Instant>,
    remote: Arc<RemoteCourier>,
}

/// One request, and where its response goes.
struct BlockingRequest {
    path: String,
    /// Posted as JSON. A request without it is a GET.
    body: Option<Value>,
    response: Sender<Result<Bytes, CliError>>,
}

impl RemoteMailbox {
    /// Asks the courier for the workspace of the token. No request takes longer than to `deadline`.
    pub fn open(
        home: &Home,
        remote: &RemoteCourier,
        deadline: Option<Instant>,
    ) -> Result<Self, CliError> {
        let (sender, receiver) = channel();
        let remote = Arc::new(remote.fork());
        let client = Client::Remote(Arc::clone(&remote));
        std::thread::Builder::new()
            .name("remote".to_owned())
            .spawn(move || answer(&client, &receiver))?;
        let url = remote.url();
        let requests = Arc::new(RemoteRequests { sender: Mutex::new(sender), deadline, remote });
        let caller: CallerView = requests.json("/api/v1/caller", None)?;
        let workspace = caller.workspace.unwrap_or_else(|| Workspace::shared().into());
        let workspace = Workspace::new(workspace)
            .map_err(|error| CliError::new(CliExit::Courier, error.to_string()))?;
        // Another token can have another workspace.
        let key = digest(format!("{url}\n{}", workspace.as_str()).as_bytes());
        let root = home.remote().join(key.get(..16).unwrap_or(&key));
        let did: Result<Did, InvalidDid> = caller.did.parse();
        let did = did
            .map_err(|error| CliError::new(CliExit::Courier, format!("{}: {error}", caller.did)))?;
        Ok(Self { requests, workspace, did, root })
    }

    /// The copy of the courier's mailbox directory.
    pub fn copy(&self) -> PathBuf {
        self.root.join("mailbox")
    }

    /// A client with a connection of its own.
    pub fn client(&self) -> Client {
        Client::Remote(Arc::new(self.requests.remote.fork()))
    }

    pub fn source(&self) -> Arc<dyn MailboxSource> {
        Arc::<RemoteRequests>::clone(&self.requests)
    }

    /// Returns the path of an attachment, which is copied if it is not there yet.
    pub fn attachment(&self, hash: &ObjId) -> Result<PathBuf, CliError> {
        let text = hash.to_string();
        let dir = self.root.join("dropzone");
        let path = dir.join(text.rsplit(':').next().unwrap_or_default());
        if path.exists() {
            return Ok(path);
        }
        let bytes = self.requests.get(&format!("/api/v1/objects/{}", segment(&text)), None)?;
        if ObjId::of(ObjKind::Bytes, &bytes) != *hash {
            let message = format!("the courier sent other bytes than those of {text}");
            return Err(CliError::new(CliExit::Courier, message));
        }
        std::fs::create_dir_all(&dir)?;
        let mark = super::random()?;
        let temporary = dir.join(format!(".{mark:016x}.tmp"));
        monoco_fs::write_via(&temporary, &path, &bytes, FileOptions::READ_ONLY)
            .map_err(std::io::Error::from)?;
        Ok(path)
    }
}

/// Makes requests until the command ends.
fn answer(client: &Client, requests: &Receiver<BlockingRequest>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    while let Ok(BlockingRequest { path, body, response }) = requests.recv() {
        let result = match &runtime {
            Ok(runtime) => runtime.block_on(client.get_bytes(&path, body.as_ref())),
            Err(error) => Err(std::io::Error::other(error.to_string()).into()),
        };
        // A command that has ended reads no response.
        let _ = response.send(result);
    }
}

impl RemoteRequests {
    fn get(&self, path: &str, body: Option<Value>) -> Result<Bytes, CliError> {
        let ended = || CliError::new(CliExit::Courier, "the thread for requests has ended");
        let (response, result) = channel();
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let request = BlockingRequest { path: path.to_owned(), body, response };
        sender.send(request).map_err(|_| ended())?;
        let Some(deadline) = self.deadline else { return result.recv().map_err(|_| ended())? };
        match result.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(self.too_late()),
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
        }
    }

    /// The error of a request that has no answer at the deadline.
    fn too_late(&self) -> CliError {
        let message = format!("{} has not answered within the timeout", self.remote.url());
        CliError::new(CliExit::NoCourier, message).code(TIMEOUT_CODE)
    }

    fn json<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        body: Option<Value>,
    ) -> Result<T, CliError> {
        let bytes = self.get(path, body)?;
        serde_json::from_slice(&bytes).map_err(|error| CliError::invalid_response(&error))
    }
}

impl std::fmt::Debug for RemoteRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RemoteRequests")
    }
}

impl MailboxSource for RemoteRequests {
    fn index_page(&self, after: i64) -> Result<SourceIndexPage, SourceError> {
        let page: MailIndexPage =
            self.json(&format!("/api/v1/mailbox/index?after={after}"), None)?;
        let MailIndexPage { generation, entries, last, has_more } = page;
        Ok(SourceIndexPage { generation, entries, last, has_more })
    }

    fn mail_file(&self, id: &MailId) -> Result<Option<Vec<u8>>, SourceError> {
        let path = format!("/api/v1/messages/{}/file", segment(&id.to_string()));
        match self.get(&path, None) {
            Ok(bytes) => Ok(Some(bytes.into())),
            // A damaged Mail must not keep the others from being pulled.
            Err(error) if matches!(error.code.as_ref(), "not_found" | "erased" | "damaged") => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn mail_files(&self, ids: &[MailId]) -> Result<Vec<SourceFile>, SourceError> {
        let ids = ids.get(..MAX_MAILS_PER_REQUEST).unwrap_or(ids);
        let list: MailFileList = match self.json(FILES_PATH, Some(json!({ "ids": ids }))) {
            // An older courier sends only single files.
            Err(error) if error.code == "no_route" => return Ok(Vec::new()),
            list => list?,
        };
        let file = |MailFileView { id, file, .. }: MailFileView| {
            let id = id.parse().map_err(|error| format!("the courier sent the id {id:?}: {error}"));
            Ok(SourceFile { id: id?, bytes: file.map(String::into_bytes) })
        };
        list.files.into_iter().map(file).collect()
    }
}
