// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/job_notes.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cstdio>

#include "cli/streams.h"
#include "cli/text.h"

namespace shardwright::cli {

std::vector<std::string> model_notes(const Model& model, std::int64_t longest) {
  std::vector<std::string> notes;
  if (!model.ignored_keys.empty()) {
    notes.push_back(fmt::format("{}: its configuration has keys that are ignored: {}", model.name,
                                fmt::join(model.ignored_keys, ", ")));
  }
  if (!model.dropout.empty()) {
    notes.push_back(
        fmt::format("{}: {}; dropout is not modelled, so its masks and their time are "
                    "not in the answer",
                    model.name, model.dropout));
  }
  if (model.max_positions > 0 && longest > model.max_positions) {
    notes.push_back(fmt::format("{}: a sequence has {} tokens, but the model was made for {}",
                                model.name, longest, model.max_positions));
  }
  return notes;
}

void tell_notes(const Terminal& err, const std::vector<std::string>& notes) {
  for (const std::string& note : notes) {
    fmt::print(messages(), "{} {}\n", paint(err, Style::kYellow, "note:"),
               printable(note, err.utf8));
  }
}

}  // namespace shardwright::cli
