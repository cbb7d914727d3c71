// SPDX-License-Identifier: Apache-2.0
#include "cli/render/measured/trainer_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/render/text/json_text.h"
#include "cli/text.h"
#include "sim/core/base/json_file.h"

namespace shardwright::cli {
namespace {

constexpr int kCommentColumns = 96;

/// The head's paragraphs, free of control characters: names of models and files are the user's.
std::vector<std::string> paragraphs(const Trainer& trainer, const TrainerSettings& settings,
                                    const std::vector<std::string>& origin) {
  std::vector<std::string> all;
  for (const std::string& sentence : origin) all.push_back(printable(sentence, true));
  for (const bool lost : {true, false}) {
    const auto of_kind = [lost](const Remark& r) { return r.lost == lost; };
    if (std::none_of(settings.remarks.begin(), settings.remarks.end(), of_kind)) continue;
    all.push_back(lost ? fmt::format("Not expressed; {} does otherwise:", trainer.title)
                       : "Said elsewhere or by itself:");
    for (const Remark& remark : settings.remarks) {
      if (of_kind(remark)) all.push_back("- " + printable(remark_text(remark), true));
    }
  }
  return all;
}

}  // namespace

std::string remark_text(const Remark& remark) {
  return fmt::format("{}: {}.", remark.knob, remark.sentence);
}

AnySource trainer_file(const Trainer& trainer, const TrainerSettings& settings,
                       const std::vector<std::string>& origin) {
  const std::vector<std::string> head = paragraphs(trainer, settings, origin);
  if (settings.body.language() == Script::kJson) {
    nlohmann::ordered_json document{{"_comment", head}};
    document.update(parse_ordered_json(settings.body.text()));
    return json_source(json_text(document) + "\n");
  }
  std::vector<std::string> lines;
  for (const std::string& paragraph : head) {
    const bool item = paragraph.starts_with("- ");
    bool first = true;
    for (const std::string& line : wrap(item ? paragraph.substr(2) : paragraph, kCommentColumns)) {
      lines.push_back((!item ? "" : first ? "- " : "  ") + line);
      first = false;
    }
  }
  return settings.body.commented(lines);
}

}  // namespace shardwright::cli
