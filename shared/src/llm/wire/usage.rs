//! Conversion of each wire's token counts to ours. *Pure.*

use serde_json::Value;

use crate::llm::usage::TokenUsage;

/// Returns the number of tokens at the first of `paths` that has one.
fn count(usage: &Value, paths: &[&str]) -> Option<u64> {
    paths.iter().find_map(|path| usage.pointer(path)?.as_u64())
}

/// Chat completions: reasoning is part of `completion_tokens`, unless the total shows that it is not (xAI).
pub(super) fn openai(usage: &Value) -> TokenUsage {
    let input = count(usage, &["/prompt_tokens"]).unwrap_or(0);
    let completion = count(usage, &["/completion_tokens"]).unwrap_or(0);
    let cached = count(
        usage,
        &["/prompt_tokens_details/cached_tokens", "/prompt_cache_hit_tokens"],
    );

    let reasoning = count(
        usage,
        &["/completion_tokens_details/reasoning_tokens", "/reasoning_tokens"],
    )
    .unwrap_or(0);

    // If reasoning is counted separately, the total includes it, or it exceeds the completion.
    let all = input.saturating_add(completion);
    let apart = match count(usage, &["/total_tokens"]) {
        Some(total) => total != all && total == all.saturating_add(reasoning),
        None => reasoning > completion,
    };

    TokenUsage {
        input,
        output: if apart {
            completion.saturating_add(reasoning)
        } else {
            completion
        },
        cached: cached.unwrap_or(0),
        reasoning,
    }
}

/// Messages: tokens read from the cache and tokens written into it are counted separately from `input_tokens`.
pub(super) fn anthropic(usage: &Value) -> TokenUsage {
    let tokens = |path: &str| count(usage, &[path]).unwrap_or(0);
    let cached = tokens("/cache_read_input_tokens");

    TokenUsage {
        input: tokens("/input_tokens")
            .saturating_add(tokens("/cache_creation_input_tokens"))
            .saturating_add(cached),
        output: tokens("/output_tokens"),
        cached,
        reasoning: tokens("/output_tokens_details/thinking_tokens"),
    }
}

/// `usageMetadata`: visible and reasoning tokens are counted separately, and so are those that Google's own tools
/// read.
pub(super) fn gemini(usage: &Value) -> TokenUsage {
    let tokens = |path: &str| count(usage, &[path]).unwrap_or(0);
    let reasoning = tokens("/thoughtsTokenCount");
    TokenUsage {
        input: tokens("/promptTokenCount").saturating_add(tokens("/toolUsePromptTokenCount")),
        output: tokens("/candidatesTokenCount").saturating_add(reasoning),
        cached: tokens("/cachedContentTokenCount"),
        reasoning,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reasoning_is_added_where_the_total_says_that_it_is_not_in_it() {
        let usage = |completion: u64, reasoning: u64, total: Option<u64>| {
            let details = json!({"reasoning_tokens": reasoning});
            let said = json!({
                "prompt_tokens": 10, "completion_tokens": completion, "total_tokens": total,
                "completion_tokens_details": details
            });
            openai(&said).output
        };

        assert_eq!(usage(35, 192, Some(237)), 227, "xAI");
        assert_eq!(usage(35, 18, Some(45)), 35, "DeepSeek");
        assert_eq!(usage(10, 11, Some(20)), 10, "OpenRouter, cut");
        assert_eq!(usage(35, 192, None), 227);
        assert_eq!(usage(35, 18, None), 35);
        assert_eq!(usage(35, 0, Some(45)), 35);
    }
}
