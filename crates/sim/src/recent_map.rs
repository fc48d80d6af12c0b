//! A map with a limited number of entries.

use std::collections::{HashMap, VecDeque};

/// Entries that are kept.
const MAX_ENTRIES: usize = 50_000;

/// Newest entries by key; the oldest is dropped.
#[derive(Debug)]
pub struct RecentMap<V> {
    entries: HashMap<String, V>,
    order: VecDeque<String>,
}

impl<V> Default for RecentMap<V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new() }
    }
}

impl<V> RecentMap<V> {
    pub fn insert(&mut self, key: String, value: V) {
        if self.entries.insert(key.clone(), value).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > MAX_ENTRIES
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }

    pub fn get(&self, key: &str) -> Option<&V> {
        self.entries.get(key)
    }

    pub fn get_mut(&mut self, key: &str) -> Option<&mut V> {
        self.entries.get_mut(key)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_map_drops_its_oldest_entry() {
        let mut map = RecentMap::default();
        for number in 0..=MAX_ENTRIES {
            map.insert(number.to_string(), number);
        }
        assert_eq!(map.get("0"), None);
        assert_eq!(map.get("1"), Some(&1));
    }

    #[test]
    fn replaced_entry_is_dropped_once() {
        let mut map = RecentMap::default();
        map.insert("a".to_owned(), 1);
        map.insert("a".to_owned(), 2);
        assert_eq!((map.get("a"), map.len(), map.order.len()), (Some(&2), 1, 1));
    }
}
