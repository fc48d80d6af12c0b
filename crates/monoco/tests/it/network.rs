//! Network namespaces, whose links can be cut without an answer to either side.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A network namespace with one address per link to the namespace of the test, removed on drop.
pub struct Namespace {
    name: String,
    links: Vec<Link>,
}

struct Link {
    /// Its device in the namespace of the test.
    device: String,
    /// Its address in this namespace.
    address: Ipv4Addr,
}

impl Namespace {
    /// Creates a namespace with so many links.
    pub fn create(links: usize) -> Self {
        static LINKS: AtomicU32 = AtomicU32::new(0);
        let id = std::process::id();
        let first = LINKS.fetch_add(u32::try_from(links).unwrap(), Ordering::Relaxed);
        let name = format!("monoco{id}x{first}");
        run(&format!("ip netns add {name}"));
        let mut namespace = Self { name, links: Vec::new() };
        let name = namespace.name.clone();
        run(&format!("ip -n {name} link set lo up"));
        for (at, number) in (0..links).zip(first..) {
            // Addresses differ between test processes, and between the links of one.
            let network = (10 << 24) | (3 << 22) | ((id % 4_096) << 10) | ((number % 256) << 2);
            let [ours, theirs] = [1, 2].map(|host| Ipv4Addr::from(network | host));
            let link = Link { device: format!("mnc{id}x{number}"), address: theirs };
            for command in [
                format!("ip link add {} type veth peer name eth{at} netns {name}", link.device),
                format!("ip addr add {ours}/30 dev {}", link.device),
                format!("ip link set {} up", link.device),
                format!("ip -n {name} addr add {theirs}/30 dev eth{at}"),
                format!("ip -n {name} link set eth{at} up"),
            ] {
                run(&command);
            }
            namespace.links.push(link);
        }
        namespace
    }

    /// The address at which a link reaches servers in this namespace.
    pub fn address(&self, link: usize) -> Ipv4Addr {
        self.links[link].address
    }

    /// The start of a command that runs in this namespace.
    pub fn prefix(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }

    /// Drops every packet of a link from now on, in both directions and without an answer.
    pub fn swallow_packets(&self, link: usize) {
        let nft = |command: &str| run(&format!("ip netns exec {} nft '{command}'", self.name));
        nft("add table inet t");
        for (hook, device) in [("input", "iifname"), ("output", "oifname")] {
            nft(&format!("add chain inet t {hook} {{ type filter hook {hook} priority 0 ; }}"));
            nft(&format!("add rule inet t {hook} {device} eth{link} drop"));
        }
    }

    /// Ends what [`Self::swallow_packets`] has started.
    pub fn pass_packets(&self) {
        run(&format!("ip netns exec {} nft delete table inet t", self.name));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        for link in &self.links {
            let _ = Command::new("ip").args(["link", "delete", &link.device]).output();
        }
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).output();
    }
}

#[track_caller]
fn run(command: &str) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {errors}; needs root, iproute2 and nftables");
}
