//! The hooks of one event that have not answered: those that are open, and those that are called apart, after them. *Pure.*

use super::FlightStage;

/// Hooks that have not answered, by their indices in the set.
#[derive(Debug)]
pub(super) struct OpenHooks {
    /// Number of hooks in the set.
    set_size: usize,
    /// The open hooks, ascending; `None` means all of the set.
    open: Option<Vec<u32>>,
    /// The hooks that must be called apart, ascending.
    apart: Vec<u32>,
}

impl OpenHooks {
    /// Opens the hooks of `only` (ascending) in a set of `set_size`; `None` means all.
    pub(super) const fn new(set_size: usize, only: Option<Vec<u32>>) -> Self {
        Self {
            set_size,
            open: only,
            apart: Vec::new(),
        }
    }

    /// Returns the number of hooks in the set.
    pub(super) const fn set_size(&self) -> usize {
        self.set_size
    }

    /// Returns the indices of all hooks in the set, ascending.
    pub(super) fn all_in_set(&self) -> Vec<u32> {
        (0..u32::try_from(self.set_size).unwrap_or(u32::MAX)).collect()
    }

    /// Returns the indices of the open hooks, ascending; `None` means all of the set.
    pub(super) fn listed(&self) -> Option<&[u32]> {
        self.open.as_deref()
    }

    /// Returns the indices of the open hooks, ascending.
    pub(super) fn to_vec(&self) -> Vec<u32> {
        self.open.clone().unwrap_or_else(|| self.all_in_set())
    }

    /// Returns the number of open hooks.
    pub(super) fn open_count(&self) -> usize {
        self.open.as_ref().map_or(self.set_size, Vec::len)
    }

    /// Returns whether hook `index` is open.
    pub(super) fn is_open(&self, index: u32) -> bool {
        match &self.open {
            Some(open) => open.binary_search(&index).is_ok(),
            None => (index as usize) < self.set_size,
        }
    }

    /// Returns whether hook `index` is open, or will be.
    pub(super) fn awaits(&self, index: u32) -> bool {
        self.is_open(index) || self.apart.binary_search(&index).is_ok()
    }

    /// Returns `waiting` and the hooks to be called apart, ascending.
    pub(super) fn with_apart(&self, waiting: &[u32]) -> Vec<u32> {
        let mut all = [waiting, &self.apart].concat();
        all.sort_unstable();
        all
    }

    /// Opens the hooks `open` (ascending); if there are none, those to be called apart.
    pub(super) fn go_on_with(&mut self, open: Vec<u32>) -> FlightStage {
        let stage = match (open.is_empty(), self.apart.is_empty()) {
            (false, _) => FlightStage::UnderWay,
            (true, false) => FlightStage::Apart,
            (true, true) => FlightStage::Over,
        };

        self.open = match stage {
            FlightStage::Apart => Some(std::mem::take(&mut self.apart)),
            FlightStage::UnderWay | FlightStage::Over => Some(open),
        };

        stage
    }

    /// Keeps back those of `suspects` (ascending) that are open, to be called apart. Returns the others, or `None` if no
    /// suspect is open.
    pub(super) fn set_apart(&mut self, suspects: &[u32]) -> Option<Vec<u32>> {
        let is_suspect = |index: &u32| suspects.binary_search(index).is_ok();
        let (apart, others): (Vec<u32>, Vec<u32>) = self.to_vec().into_iter().partition(is_suspect);
        if apart.is_empty() {
            return None;
        }

        self.keep_apart(apart);
        Some(others)
    }

    /// Opens `index` alone; all other open hooks are called apart.
    pub(super) fn open_for(&mut self, index: u32) {
        let mut others = self.to_vec();
        others.retain(|open| *open != index);
        self.keep_apart(others);
        self.open = Some(vec![index]);
    }

    fn keep_apart(&mut self, indices: Vec<u32>) {
        self.apart.extend(indices);
        self.apart.sort_unstable();
    }

    /// Returns all hooks that have not answered, ascending; none is to be called apart any more.
    pub(super) fn take_unanswered(&mut self) -> Vec<u32> {
        let mut all = self.to_vec();
        all.append(&mut self.apart);
        all.sort_unstable();
        all
    }

    /// Moves the hooks to a set of `set_size`, in which `new_index` returns the index of a hook, or `None` if it is gone.
    /// Returns the number of hooks that are gone.
    pub(super) fn move_to(&mut self, set_size: usize, new_index: impl Fn(u32) -> Option<u32>) -> usize {
        let all = [self.to_vec(), std::mem::take(&mut self.apart)];
        let before: usize = all.iter().map(Vec::len).sum();

        let [open, apart] = all.map(|all| {
            let mut kept: Vec<u32> = all.into_iter().filter_map(&new_index).collect();
            // The numbers are those of another set, and the lists have to be ascending.
            kept.sort_unstable();
            kept
        });
        let gone = before - open.len() - apart.len();

        *self = Self {
            set_size,
            open: Some(open),
            apart,
        };
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_apart_are_opened_after_the_others_and_one_of_them_alone() {
        let mut hooks = OpenHooks::new(5, None);
        assert_eq!(hooks.set_apart(&[1, 3]), Some(vec![0, 2, 4]));
        assert_eq!(hooks.go_on_with(vec![4]), FlightStage::UnderWay);
        assert!(hooks.awaits(1) && !hooks.is_open(1) && !hooks.awaits(0));
        assert_eq!(hooks.with_apart(&[4]), [1, 3, 4]);

        assert_eq!(hooks.go_on_with(Vec::new()), FlightStage::Apart);
        assert_eq!(hooks.to_vec(), [1, 3]);
        hooks.open_for(3);
        assert_eq!((hooks.to_vec(), hooks.awaits(1)), (vec![3], true));

        assert_eq!(hooks.go_on_with(Vec::new()), FlightStage::Apart);
        assert_eq!(hooks.to_vec(), [1]);
        assert_eq!(hooks.go_on_with(Vec::new()), FlightStage::Over);
    }

    #[test]
    fn in_another_set_the_lists_ascend_and_hooks_that_are_gone_are_counted() {
        let mut hooks = OpenHooks::new(5, Some(vec![0, 1, 3, 4]));
        let others = hooks.set_apart(&[2, 4]).expect("4 is open");
        assert_eq!(hooks.go_on_with(others), FlightStage::UnderWay);

        let gone = hooks.move_to(9, |index| (index != 1).then_some(8 - index));
        assert_eq!((gone, hooks.to_vec()), (1, vec![5, 8]));
        assert_eq!(hooks.take_unanswered(), [4, 5, 8]);
    }
}
