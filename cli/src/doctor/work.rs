//! Checks of the work: backlogs, dead letters, paused hooks, parked replies, pairings. A state that is not known is
//! reported as unknown: an empty list and an unreadable list are not the same.

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use shared::wire::operator::status::{Known, PairingCount, Surveyed, WitnessedStream, WorkStatus};

use super::{Finding, Surroundings};
use crate::output::Zone;

/// Returns the findings of `check` about the work; none if scheduler-svc does not tell, which `topology` has reported.
fn of_work<'a>(
    surroundings: &'a Surroundings,
    check: impl FnOnce(&WorkStatus) -> Vec<Finding> + 'a,
) -> LocalBoxFuture<'a, Vec<Finding>> {
    async move {
        let work = surroundings
            .status
            .as_ref()
            .ok()
            .and_then(|status| status.work.as_ref());
        work.map(check).unwrap_or_default()
    }
    .boxed_local()
}

/// Returns the finding of `judge` about `known`, or that it is not known.
fn judged<T>(what: &str, known: &Known<T>, judge: impl FnOnce(&T) -> Finding) -> Finding {
    match known {
        Known::Known(value) => judge(value),
        Known::Unknown(why) => Finding::unknown(what, why),
    }
}

/// Returns the findings of `judge` about what was found in a bucket, and a finding about values that cannot be read.
fn surveyed<T>(
    what: &str,
    known: &Known<Surveyed<T>>,
    judge: impl FnOnce(&Surveyed<T>) -> Vec<Finding>,
) -> Vec<Finding> {
    let survey = match known {
        Known::Known(survey) => survey,
        Known::Unknown(why) => return vec![Finding::unknown(what, why)],
    };
    let mut findings = judge(survey);
    findings.extend(survey.unread.as_ref().map(|why| Finding::unknown(what, why)));
    findings
}

/// Returns the end of a list that does not name `unnamed` things.
fn and_others(unnamed: usize) -> String {
    match unnamed {
        0 => String::new(),
        unnamed => format!(" and {unnamed} others"),
    }
}

/// Reports the backlogs of hooks, sessions and destinations. A backlog is not a fault in itself.
pub(super) fn waiting(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    of_work(surroundings, |work| {
        let counted = [("hooks", &work.hooks), ("deliveries", &work.deliveries)];
        let mut findings: Vec<Finding> = counted
            .map(|(what, counted)| {
                judged(what, counted, |waiting| {
                    Finding::ok(what, format!("{waiting} messages are waiting"))
                })
            })
            .into();

        findings.push(judged("parked", &work.parked, |parked| {
            let detail = format!("{parked} replies are parked because their destinations fail");
            match parked {
                0 => Finding::ok("parked", detail),
                1.. => Finding::warning("parked", detail),
            }
        }));

        match &work.restored {
            Known::Known(Some(count)) => {
                let detail = format!("{count} deliveries are held since a restore (`nexus restore --list`)");
                findings.push(Finding::warning("restored", detail));
            }
            Known::Known(None) => {}
            Known::Unknown(why) => findings.push(Finding::unknown("restored", why)),
        }

        findings
    })
}

/// Checks for dead letters, which an operator must look at.
pub(super) fn dead_letters(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    of_work(surroundings, |work| {
        vec![judged("dead letters", &work.dead_letters, |count| {
            Finding::judged("dead letters", *count == 0, format!("{count} (`nexus dlq list`)"))
        })]
    })
}

/// Reports the sessions that run, and those that are quarantined.
pub(super) fn sessions(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    of_work(surroundings, |work| {
        let mut findings = vec![judged("sessions", &work.claimed, |claimed| {
            Finding::ok("sessions", format!("{claimed} claimed"))
        })];
        findings.extend(surveyed("quarantine", &work.quarantined, |survey| {
            let told = survey.found.iter().map(|one| {
                let (session, why) = (&one.session, &one.why);
                let detail = format!("{session} is quarantined: {why}; `nexus session release` lets it run");
                Finding::fault("quarantine", detail)
            });
            let others = (survey.unnamed > 0)
                .then(|| Finding::fault("quarantine", format!("{} others are quarantined", survey.unnamed)));
            told.chain(others).collect()
        }));
        findings
    })
}

/// Checks for held messages, and for streams that were put back to an older state.
pub(super) fn held(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    of_work(surroundings, |work| {
        let mut findings = surveyed("held", &work.held, |survey| {
            let detail = format!("{} messages (`nexus recover list`)", survey.found);
            vec![Finding::judged("held", survey.found == 0, detail)]
        });
        findings.push(positions(&work.witnessed));
        findings
    })
}

fn positions(witnessed: &Known<Surveyed<Vec<WitnessedStream>>>) -> Finding {
    let survey = match witnessed {
        Known::Known(survey) => survey,
        Known::Unknown(why) => return Finding::unknown("positions", why),
    };
    if let Some(why) = &survey.unread {
        return Finding::unknown("positions", why);
    }

    let older: Vec<String> = survey
        .found
        .iter()
        .filter_map(|one| {
            let until = one.unsettled_until?;
            Some(format!("{} (until {})", one.stream, Zone::of_reader().date_time(until)))
        })
        .collect();
    if !older.is_empty() {
        let detail = format!("restored to an earlier state: {}", older.join(", "));
        return Finding::warning("positions", detail);
    }

    // Positions in the other streams are compared by the services, which report a void one under their own names.
    let compared: Vec<&str> = survey.found.iter().map(|one| one.stream.as_str()).collect();
    let detail = match compared.as_slice() {
        [] => "no stream has a witness yet".to_owned(),
        streams => format!("none of {} was restored to an earlier state", streams.join(", ")),
    };
    Finding::ok("positions", detail)
}

/// Checks for hooks that are paused because they keep failing.
pub(super) fn hooks(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    of_work(surroundings, |work| {
        surveyed("paused hooks", &work.paused_hooks, |survey| vec![paused(survey)])
    })
}

fn paused(survey: &Surveyed<Vec<String>>) -> Finding {
    let detail = format!("{} are paused after errors", survey.found.len() + survey.unnamed);
    if survey.found.is_empty() {
        return Finding::ok("paused hooks", detail);
    }

    let others = and_others(survey.unnamed);
    let detail = format!("{detail}: {}{others} (`nexus breaker list`)", survey.found.join(", "));
    Finding::warning("paused hooks", detail)
}

/// Checks for schedules that are paused.
pub(super) fn schedules(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    of_work(surroundings, |work| {
        surveyed("schedules", &work.schedules, |survey| {
            let detail = format!("{} of {} are paused", survey.found.paused, survey.found.all);
            vec![Finding::ok("schedules", detail)]
        })
    })
}

/// Checks for pairings whose value is older than the record of decisions: the bucket was restored or lost.
pub(super) fn pairings(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    of_work(surroundings, |work| {
        surveyed("pairings", &work.pairings, |survey| vec![judge_pairings(survey)])
    })
}

fn judge_pairings(survey: &Surveyed<PairingCount>) -> Finding {
    let PairingCount {
        paired,
        waiting,
        restored,
    } = &survey.found;
    let detail = format!("{paired} senders are paired, {waiting} have a code");
    if restored.is_empty() {
        return Finding::ok("pairings", detail);
    }

    let restored = format!("{}{}", restored.join(", "), and_others(survey.unnamed));
    Finding::warning(
        "pairings",
        format!(
            "{detail}; KV `pairings` is older than AUDIT about {restored}: what was withdrawn stays withdrawn, and what was \
             lost must be paired again (`nexus channel pairings`)"
        ),
    )
}
