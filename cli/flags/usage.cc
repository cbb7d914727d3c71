// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/usage.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "sim/core/base/words.h"
#include "sim/core/plan_knobs.h"

namespace shardwright::cli {
namespace {

std::string command_of(const FailedParse& failed) {
  return failed.verb.empty() ? failed.program : failed.program + " " + failed.verb;
}

/// Names of other programs first.
std::string hint_for_flag(const std::string& name, const std::vector<std::string>& flags) {
  struct Alias {
    std::string_view theirs, flag, value;
  };
  constexpr Alias kAliases[] = {{"--qlora", "--task", " qlora"},
                                {"--load-in-4bit", "--quantize", " nf4"},
                                {"--load-in-8bit", "--quantize", " int8"},
                                {"--batch-size", "--micro-batch", ""},
                                {"--num-gpus", "--gpus", ""},
                                {"--world-size", "--gpus", ""}};
  for (const Alias& alias : kAliases) {
    if (name == alias.theirs && std::find(flags.begin(), flags.end(), alias.flag) != flags.end())
      return fmt::format(", did you mean '{}{}'?", alias.flag, alias.value);
  }
  return did_you_mean(name, flags);
}

/// Of a knob of plans that `run` does not train with, who does.
std::string who_takes(const FailedParse& failed, std::string_view flag) {
  if (failed.verb != "run") return "";
  const auto& knobs = plan_knobs();
  const bool is_knob = std::any_of(knobs.begin(), knobs.end(), [flag](const PlanKnob& knob) {
    return flag.starts_with("--") && flag.substr(2) == knob.name;
  });
  if (!is_knob) return "";
  return ": it trains with AdamW, data, tensor and pipeline parallelism and all state on the "
         "device; predict, tune and size take it, and export writes it for a framework that trains "
         "so.";
}

std::string unexpected_word(const FailedParse& failed) {
  const std::vector<std::string>& words = failed.unplaced;
  const std::string command = command_of(failed);
  const auto no_verb = [&] {
    const std::string hint = did_you_mean(words.front(), failed.verbs);
    return fmt::format(
        "there is no verb '{}'{}", words.front(),
        hint.empty() ? fmt::format("; the verbs are {}.", fmt::join(failed.verbs, ", ")) : hint);
  };
  const bool verb_is_missing = failed.verb.empty() && !failed.verbs.empty();
  if (verb_is_missing && !words.front().starts_with('-')) return no_verb();
  const auto flag = std::find_if(words.begin(), words.end(),
                                 [](const std::string& w) { return w.starts_with('-'); });
  if (flag != words.end()) {
    const std::string name = flag->substr(0, flag->find('='));
    std::string hint = who_takes(failed, name);
    if (hint.empty()) hint = hint_for_flag(name, failed.flags);
    return fmt::format("{} has no flag '{}'{}", command, name,
                       hint.empty() ? fmt::format("; {} --help lists them.", command) : hint);
  }
  const auto has = [&](const char* name) {
    return std::find(failed.flags.begin(), failed.flags.end(), name) != failed.flags.end();
  };
  return fmt::format(
      "{} takes no further argument, but '{}' was given{}.", command, fmt::join(words, " "),
      has("--model") && has("--cluster") ? "; a model is named by --model, a cluster by --cluster"
                                         : "");
}

// CLI11 says "--gpus: 1 required N missing" or "--gpus: At Most 1 required but received 2".
std::string argument_mismatch(const FailedParse& failed) {
  const std::string flag = failed.said.substr(0, failed.said.find(':'));
  return fmt::format("{}: {} takes one value, but {} given.", command_of(failed), flag,
                     failed.said.ends_with("missing") ? "none was" : "several were");
}

std::string sentence(const FailedParse& failed) {
  if (!failed.unplaced.empty()) return unexpected_word(failed);
  if (failed.something_is_missing && failed.verb.empty() && !failed.verbs.empty()) {
    return fmt::format("no verb was given; the verbs are {}.", fmt::join(failed.verbs, ", "));
  }
  if (failed.wrong_number_of_values) return argument_mismatch(failed);
  return fmt::format("{0}: {1}; {0} --help tells what is accepted.", command_of(failed),
                     failed.said);
}

}  // namespace

Error usage_error(const FailedParse& failed) {
  return Error(sentence(failed), ExitCode::kUsage);
}

}  // namespace shardwright::cli
