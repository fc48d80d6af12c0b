//! PostgreSQL servers that Patroni manages, with an etcd server that elects the primary.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{raw, wait_within};
use crate::pipeline_harness::free_port;
use crate::postgres_server::{PASSWORD, USER, children, command, give_to_server, program};

/// How long Patroni may take to create the servers, or to elect a primary. Without load both are
/// done in 20 s.
const MAX_ELECTION: Duration = Duration::from_secs(120);

/// Servers of one cluster, which end with the test.
pub struct PatroniCluster {
    etcd: Child,
    nodes: Vec<PatroniNode>,
    dir: TempDir,
}

struct PatroniNode {
    name: String,
    process: Option<Child>,
    /// Where PostgreSQL listens, and where Patroni answers.
    port: u16,
    api_port: u16,
}

impl PatroniCluster {
    /// Starts so many servers, and waits until one of them is the primary and another one its
    /// synchronous standby.
    ///
    /// # Panics
    ///
    /// When Patroni or etcd is not installed: these tests must not be skipped.
    pub fn start(count: usize) -> Self {
        let dir = tempfile::Builder::new().prefix("monoco-it-patroni-").tempdir().unwrap();
        give_to_server(dir.path());
        let [client, peer] =
            [free_port(), free_port()].map(|port| format!("http://127.0.0.1:{port}"));
        let mut etcd = command("etcd", &[], &[]);
        etcd.arg("--data-dir").arg(dir.path().join("etcd"));
        etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        etcd.args(["--initial-cluster", &format!("default={peer}")]);
        let log = File::create(dir.path().join("etcd.log")).unwrap();
        let etcd = etcd.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let mut cluster = Self { etcd, nodes: Vec::new(), dir };
        for at in 0..count {
            let (name, port, api_port) = (format!("db-{at}"), free_port(), free_port());
            let node = PatroniNode { name, process: None, port, api_port };
            cluster.configure(&node, client.trim_start_matches("http://"));
            cluster.nodes.push(node);
            cluster.run(at);
        }
        wait_within(MAX_ELECTION, || {
            let roles = cluster.roles();
            let is_complete =
                roles.len() == count && roles.iter().any(|role| role == "sync_standby");
            if is_complete { Ok(()) } else { Err(format!("{roles:?}: {}", cluster.logs())) }
        });
        cluster
    }

    /// Writes the config of a node, as `docs/scale.md` shows it, with shorter intervals.
    fn configure(&self, node: &PatroniNode, etcd: &str) {
        let PatroniNode { name, port, api_port, .. } = node;
        let (home, bin) = (self.dir.path().join(name), program("postgres"));
        fs::create_dir(&home).unwrap();
        give_to_server(&home);
        let (home, bin) = (home.display(), bin.parent().unwrap().display());
        let config = format!(
            "scope: hub
name: {name}
etcd3: {{ host: '{etcd}' }}
restapi: {{ listen: '127.0.0.1:{api_port}', connect_address: '127.0.0.1:{api_port}' }}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 2
    retry_timeout: 3
    maximum_lag_on_failover: 0
    synchronous_mode: true
    synchronous_mode_strict: true
    postgresql: {{ use_pg_rewind: true, parameters: {{ wal_log_hints: 'on' }} }}
  initdb: [{{ encoding: UTF8 }}, {{ locale: C }}]
postgresql:
  listen: '127.0.0.1:{port}'
  connect_address: '127.0.0.1:{port}'
  bin_dir: {bin}
  data_dir: {home}/data
  pgpass: {home}/pgpass
  parameters: {{ unix_socket_directories: '{home}' }}
  authentication:
    superuser: {{ username: {USER}, password: {PASSWORD} }}
    replication: {{ username: replicator, password: {PASSWORD} }}
  pg_hba:
    - local all all trust
    - host all all 127.0.0.1/32 scram-sha-256
    - host replication replicator 127.0.0.1/32 scram-sha-256
"
        );
        fs::write(self.config(node), config).unwrap();
    }

    fn config(&self, node: &PatroniNode) -> PathBuf {
        self.dir.path().join(format!("{}.yml", node.name))
    }

    /// Starts Patroni of a node, which starts PostgreSQL.
    pub fn run(&mut self, at: usize) {
        let config = self.config(&self.nodes[at]);
        let log = config.with_extension("log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut patroni = command("patroni", &[], &[]);
        patroni.arg(config).stdout(log.try_clone().unwrap()).stderr(log);
        self.nodes[at].process = Some(patroni.spawn().unwrap());
    }

    /// `kill -9` of Patroni, PostgreSQL and all their processes, as when the machine is lost.
    pub fn kill(&mut self, at: usize) {
        let data = self.dir.path().join(&self.nodes[at].name).join("data/postmaster.pid");
        let Some(mut patroni) = self.nodes[at].process.take() else { return };
        let postmaster = fs::read_to_string(data).ok().and_then(|text| {
            text.lines().next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw)
        });
        let mut processes = vec![Pid::from_child(&patroni)];
        processes.extend(postmaster);
        processes.extend(postmaster.into_iter().flat_map(children));
        for process in processes {
            // A session can have ended by itself.
            let _ = kill_process(process, Signal::KILL);
        }
        patroni.wait().unwrap();
    }

    /// Waits until a server that was not killed is the primary, and returns its number.
    #[track_caller]
    pub fn wait_for_primary(&self) -> usize {
        wait_within(MAX_ELECTION, || {
            let primary = self.nodes.iter().position(|node| {
                // 200 of this path means that Patroni holds the lock and PostgreSQL runs as primary.
                node.process.is_some() && node.get("/primary").is_some_and(|answer| answer.0 == 200)
            });
            primary.ok_or_else(|| format!("no primary: {}", self.logs()))
        })
    }

    /// The roles of the members that run.
    fn roles(&self) -> Vec<String> {
        let cluster = self.nodes.iter().find_map(|node| node.get("/cluster"));
        let members = cluster.map(|(_, cluster)| cluster["members"].clone());
        let members = members.and_then(|members| members.as_array().cloned()).unwrap_or_default();
        let running =
            members.iter().filter(|it| it["state"] == "running" || it["state"] == "streaming");
        running.map(|member| member["role"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// The URL of all servers, of which the couriers use the primary.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(|it| format!("127.0.0.1:{}", it.port)).collect();
        let hosts = hosts.join(",");
        format!("postgres://{USER}:{PASSWORD}@{hosts}/postgres?target_session_attrs=read-write")
    }

    fn logs(&self) -> String {
        let log = |node: &PatroniNode| {
            let text = fs::read_to_string(self.config(node).with_extension("log"));
            let text = text.unwrap_or_default();
            let last: Vec<_> = text.lines().rev().take(5).collect();
            format!("{}: {last:#?}", node.name)
        };
        self.nodes.iter().map(log).collect()
    }
}

impl PatroniNode {
    /// Asks Patroni of this node.
    fn get(&self, path: &str) -> Option<(u16, Value)> {
        let headers = [("Host".to_owned(), "localhost".to_owned())];
        let address = (Ipv4Addr::LOCALHOST, self.api_port).into();
        let answer = raw(address, "GET", path, &headers, b"").ok()?;
        Some((answer.status, serde_json::from_slice(&answer.bytes).ok()?))
    }
}

impl Drop for PatroniCluster {
    fn drop(&mut self) {
        for at in 0..self.nodes.len() {
            self.kill(at);
        }
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
    }
}
