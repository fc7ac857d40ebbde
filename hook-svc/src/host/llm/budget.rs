//! Daily budgets (UTC) of hooks for the model, per hook and in total, counted in KV `hook_spend`.
//!
//! A call reserves the price of its prompt and of its longest usual answer before it begins, and settles when it ends;
//! [`super::purse`] describes how replicas share a budget. A budget is exceeded by at most the calls under way, each by
//! the difference between its price and its reservation. The price of a call includes its attempts without an answer
//! that the provider may charge for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shared::bus::{Bus, CasError, Kv};
use shared::clock::SharedClock;
use shared::error_chain::describe_error;
use shared::llm::{MicroDollars, ModelPrice, estimate};
use shared::model::hook::HookSpend;
use shared::wire::subject::token;
use shared::wire::topology::buckets::HOOK_SPEND;

use super::purse::{BudgetShare, OverBudget, SpendDraft, SpentTotal};
use crate::runner::{CallError, CallUsage, HostCall};

/// Milliseconds in a day.
const DAY_MS: i64 = 86_400_000;
/// Time for which a day's counts are kept.
const KEPT: Duration = Duration::from_secs(40 * 86_400);
/// Most retries of a compare-and-set after a conflict.
const MAX_TRIES: u32 = 20;
/// Key of the total of all hooks; no hook's token is empty.
const ALL: &str = "all";

/// Daily budgets in US dollars.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpendLimits {
    /// Budget of one hook.
    pub hook_usd: f64,
    /// Budget of all hooks together.
    pub all_usd: f64,
}

/// Size of a prompt and of its longest answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuestionSize {
    /// Bytes of the prompt and the system prompt.
    pub prompt_bytes: usize,
    /// Most tokens of the answer, if the script names a number.
    pub max_tokens: Option<u32>,
}

/// Daily budgets of this replica's hooks; cheap to clone. See the module.
#[derive(Debug, Clone)]
pub struct SpendBudget(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    spends: Kv<HookSpend>,
    limits: SpendLimits,
    /// List price of the model, or the reason why there is none: then no call fits into the budget.
    price: Result<ModelPrice, String>,
    clock: SharedClock,
    /// Accounts by the key of their common record.
    accounts: Mutex<HashMap<String, Arc<Account>>>,
}

/// This replica's part of one common record.
#[derive(Debug)]
struct Account {
    key: String,
    limit: u64,
    /// Owner of the budget, for errors.
    whose: &'static str,
    purse: Mutex<BudgetShare>,
    /// Allows one write of the record at a time.
    writing: tokio::sync::Mutex<()>,
}

impl Account {
    fn lock_purse(&self) -> MutexGuard<'_, BudgetShare> {
        self.purse.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Amount reserved for one call. A call that is given up before it ends may have been paid for, so its reservation
/// counts as spent.
#[derive(Debug)]
#[must_use = "a reservation that is dropped counts as spent"]
pub(super) struct SpendReservation {
    budget: SpendBudget,
    accounts: Vec<Arc<Account>>,
    micro_usd: u64,
    price: ModelPrice,
    /// Whether the caller has received the reservation, so that the call may have begun.
    in_hand: bool,
}

impl SpendBudget {
    /// Creates the budget that all replicas on `bus` share, for a model with `price`, or the reason why it has none.
    #[must_use]
    pub fn new(bus: &Bus, limits: SpendLimits, price: Result<ModelPrice, String>, clock: SharedClock) -> Self {
        Self(Arc::new(Parts {
            spends: bus.kv(HOOK_SPEND),
            limits,
            price,
            clock,
            accounts: Mutex::default(),
        }))
    }

    /// Reserves the highest price that `question` may cost the hook `hook_id`.
    ///
    /// # Errors
    /// `no_price` if the price of a call is unknown; `over_budget` if the hook, or all hooks together, have no room for
    /// it today; `budget_unknown` if the record cannot be read or written.
    pub(super) async fn reserve_call(
        &self,
        hook_id: &str,
        question: QuestionSize,
    ) -> Result<SpendReservation, CallError> {
        let (budget, hook_id) = (self.clone(), hook_id.to_owned());
        // The task ends even if the caller is gone: an amount held in the record must be in the purse.
        let reserving = tokio::spawn(async move { budget.reserve_of_all(&hook_id, question).await });
        let Ok(reserved) = reserving.await else {
            let text = "today's budget is not available: the service is stopping".to_owned();
            return Err(CallError::new("budget_unknown", text));
        };

        reserved.map(|mut reservation| {
            reservation.in_hand = true;
            reservation
        })
    }

    async fn reserve_of_all(&self, hook_id: &str, question: QuestionSize) -> Result<SpendReservation, CallError> {
        let price = self.model_price()?;
        let mut reservation = SpendReservation {
            budget: self.clone(),
            accounts: Vec::with_capacity(2),
            micro_usd: estimate(question.prompt_bytes, question.max_tokens, &price).0,
            price,
            in_hand: false,
        };

        let limits = &self.0.limits;
        let own = (format!("hook.{}", token(hook_id)), limits.hook_usd, "the hook");

        let all = (ALL.to_owned(), limits.all_usd, "all hooks together");
        for (of, limit, whose) in [own, all] {
            let account = self.account_of(&of, limit, whose);
            match self.take(&account, reservation.micro_usd).await {
                Ok(()) => reservation.accounts.push(account),
                Err(error) => {
                    // An amount that was taken before must not stay reserved.
                    reservation.release_unused().await;
                    return Err(error);
                }
            }
        }

        Ok(reservation)
    }

    /// Returns the list price of the model.
    fn model_price(&self) -> Result<ModelPrice, CallError> {
        let no_price =
            |why: &String| CallError::new("no_price", format!("llm() has a budget in US dollars, but {why}"));
        self.0.price.as_ref().copied().map_err(no_price)
    }

    fn account_of(&self, of: &str, limit_usd: f64, whose: &'static str) -> Arc<Account> {
        let key = format!("{}.{of}", self.0.clock.now().0.div_euclid(DAY_MS));
        let mut accounts = self.0.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let account = accounts.entry(key.clone()).or_insert_with(|| {
            Arc::new(Account {
                key,
                limit: micro_dollars(limit_usd),
                whose,
                purse: Mutex::default(),
                writing: tokio::sync::Mutex::default(),
            })
        });

        Arc::clone(account)
    }

    /// Reserves `cost` in `account`, from a new slice if necessary.
    async fn take(&self, account: &Account, cost: u64) -> Result<(), CallError> {
        if account.lock_purse().reserve_cost(cost) {
            return Ok(());
        }

        let _one = account.writing.lock().await;

        // Another call may have drawn a slice while this one waited.
        if account.lock_purse().reserve_cost(cost) {
            return Ok(());
        }

        for _ in 0..MAX_TRIES {
            let drawn = self
                .write(account, |purse, before| purse.draft_slice(before, cost, account.limit))
                .await;
            match drawn {
                Ok(Ok(draft)) => {
                    let mut purse = account.lock_purse();
                    purse.adopt_draft(&draft);
                    // Smaller calls may have used part of the slice meanwhile; then another one is drawn.
                    if purse.reserve_cost(cost) {
                        return Ok(());
                    }
                }
                Ok(Err(over)) => return Err(over_budget(account, over, cost)),
                Err(error) => {
                    let text = format!("failed to read or write today's budget: {}", describe_error(&error));
                    return Err(CallError::new("budget_unknown", text));
                }
            }
        }

        let text = "today's budget has too many concurrent updates; try again".to_owned();
        Err(CallError::new("budget_unknown", text))
    }

    /// Writes the record of `account` by `draft`, with compare-and-set.
    async fn write<E>(
        &self,
        account: &Account,
        draft: impl Fn(&BudgetShare, HookSpend) -> Result<SpendDraft, E>,
    ) -> Result<Result<SpendDraft, E>, CasError> {
        let spends = &self.0.spends;
        let mut tries = 0;
        loop {
            let entry = spends.get(&account.key).await?;
            let before = entry.as_ref().map(|entry| entry.value).unwrap_or_default();
            // The purse is read in each attempt, because other calls of this process use it meanwhile.
            let purse = *account.lock_purse();
            let draft = match draft(&purse, before) {
                Ok(draft) => draft,
                Err(error) => return Ok(Err(error)),
            };

            let written = match &entry {
                None => spends.create_ttl(&account.key, &draft.after, KEPT).await,
                Some(entry) => {
                    let revision = entry.revision;
                    spends.update_ttl(&account.key, &draft.after, revision, KEPT).await
                }
            };

            match written {
                Ok(_) => return Ok(Ok(draft)),
                Err(CasError::Conflict { .. }) if tries < MAX_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    async fn give_all_back(&self, accounts: Vec<Arc<Account>>) {
        for account in accounts {
            self.give_back(&account).await;
        }
    }

    /// Writes the usage of the calls of `account` and gives the rest back, if no call is under way.
    async fn give_back(&self, account: &Arc<Account>) {
        let _one = account.writing.lock().await;

        if !account.lock_purse().is_idle() || account.lock_purse().is_empty() {
            return;
        }

        let written = self
            .write(account, |purse, before| {
                Ok::<_, std::convert::Infallible>(purse.give_back(before))
            })
            .await;

        match written {
            Ok(Ok(draft)) => {
                account.lock_purse().adopt_draft(&draft);
                let mut accounts = self.0.accounts.lock().unwrap_or_else(PoisonError::into_inner);
                // No other call uses the account. It is created again when needed, so that past days are dropped.
                if account.lock_purse().is_empty() && Arc::strong_count(account) <= 2 {
                    accounts.remove(&account.key);
                }
            }
            Ok(Err(never)) => match never {},
            // The purse keeps the amount, and the next call writes it.
            Err(error) => {
                tracing::warn!(
                    key = account.key,
                    error = describe_error(&error),
                    "failed to record the cost of model calls"
                );
            }
        }
    }
}

impl SpendReservation {
    /// Returns the list price at which the amount was reserved.
    pub(super) const fn price(&self) -> &ModelPrice {
        &self.price
    }

    /// Ends the call `call`, which used `spent`; that is nothing if the provider charges nothing.
    pub(super) async fn settle_call(self, call: &HostCall, spent: CallUsage) {
        let taken = taken_by(spent);
        if taken.micro_usd > self.micro_usd {
            tracing::debug!(event_id = %call.event_id, hook_id = call.hook.id, reserved = self.micro_usd, cost = taken.micro_usd, "model call exceeded its reservation");
        }
        self.end_call(taken).await;
    }

    /// Ends a call that was not begun.
    async fn release_unused(self) {
        self.end_call(SpentTotal::default()).await;
    }

    async fn end_call(mut self, taken: SpentTotal) {
        let accounts = self.settle_all(taken);
        let budget = self.budget.clone();
        // The task ends even if the caller is gone: an amount spent in the record must leave the purse.
        let giving_back = tokio::spawn(async move { budget.give_all_back(accounts).await });
        if giving_back.await.is_err() {
            tracing::debug!("cost of model calls not recorded: the service is stopping");
        }
    }

    /// Ends the call in all accounts at once, so that a canceled caller leaves nothing reserved.
    fn settle_all(&mut self, taken: SpentTotal) -> Vec<Arc<Account>> {
        let accounts = std::mem::take(&mut self.accounts);
        for account in &accounts {
            account.lock_purse().settle_cost(self.micro_usd, taken);
        }
        accounts
    }
}

impl Drop for SpendReservation {
    fn drop(&mut self) {
        let lost = SpentTotal {
            calls: 1,
            micro_usd: self.micro_usd,
            ..SpentTotal::default()
        };
        let taken = if self.in_hand { lost } else { SpentTotal::default() };
        let accounts = self.settle_all(taken);

        // If the service is stopping, the record keeps the amount as held.
        if let (false, Ok(runtime)) = (accounts.is_empty(), tokio::runtime::Handle::try_current()) {
            let budget = self.budget.clone();
            runtime.spawn(async move { budget.give_all_back(accounts).await });
        }
    }
}

fn over_budget(account: &Account, over: OverBudget, cost: u64) -> CallError {
    let [used, limit, cost] = [over.used, account.limit, cost].map(|micro| MicroDollars(micro).dollars());
    let whose = account.whose;
    let text = format!("{whose} spent or reserved ${used:.4} today of ${limit:.4}, and this call may cost ${cost:.4}");
    CallError::new("over_budget", text)
}

fn taken_by(spent: CallUsage) -> SpentTotal {
    SpentTotal {
        calls: u64::from(spent.llm_calls),
        tokens_in: spent.llm_tokens_in,
        tokens_out: spent.llm_tokens_out,
        micro_usd: micro_dollars(spent.llm_cost_usd),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cost or a limit is neither negative nor trillions"
)]
fn micro_dollars(usd: f64) -> u64 {
    (usd * 1_000_000.0).round() as u64
}
