//! Rendezvous hashing: which of several nodes has a key.
//!
//! Every node has a weight for every key, and the node with the highest weight has the key. Programs
//! that know the same nodes agree without asking each other. When a node is added, only the keys move
//! that it gets; when a node is removed, only the keys that it had.

use sha2::{Digest, Sha256};

/// Returns the node that has the key, or `None` when there is no node.
pub fn choose<N: AsRef<[u8]>>(key: &str, nodes: impl IntoIterator<Item = N>) -> Option<N> {
    nodes.into_iter().max_by_key(|node| weight(key, node.as_ref()))
}

fn weight(key: &str, node: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(node).chain_update(key).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> Vec<String> {
        (0..count).map(|node| format!("node-{node}")).collect()
    }

    fn owner_of(key: usize, nodes: &[String]) -> &str {
        choose(&format!("did:web:owner-{key}"), nodes).unwrap()
    }

    #[test]
    fn keys_are_spread_evenly_and_no_node_means_no_owner() {
        let nodes = nodes(10);
        let mut shares = [0; 10];
        for key in 0..2_000 {
            let owner = owner_of(key, &nodes);
            shares[nodes.iter().position(|node| node == owner).unwrap()] += 1;
        }
        assert!(shares.iter().all(|share| (140..260).contains(share)), "{shares:?}");
        assert_eq!(choose("key", Vec::<String>::new()), None);
    }

    #[test]
    fn only_keys_of_an_added_or_removed_node_move() {
        let (nodes, mut moved) = (nodes(11), 0);
        for key in 0..1_000 {
            let (before, after) = (owner_of(key, &nodes[..10]), owner_of(key, &nodes));
            assert!(before == after || after == nodes[10], "{key}: {before} to {after}");
            moved += usize::from(before != after);
        }
        assert!((50..140).contains(&moved), "{moved} of 1000 instead of about 91");
    }
}
