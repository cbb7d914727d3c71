// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/profiles/profile_diff.h"
#include "cli/profiles/profile_validation.h"
#include "cli/render/json/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
#include "cli/text.h"
#include "cli/verbs/verbs.h"

namespace shardwright::cli {
namespace {

constexpr double kSame = 0.005;  // operations that differ by less are called the same

std::string change_text(double ratio) {
  if (ratio <= 0) return "";
  if (ratio == 1) return "same";
  if (ratio >= 2 || ratio <= 0.5) return fmt::format("x {:.3g}", ratio);
  return fmt::format("{:+.1f} %", (ratio - 1) * 100);
}

/// A file by its name without folders.
std::string title_of(const std::string& name_or_path) {
  return is_path(name_or_path) ? std::filesystem::path(name_or_path).stem().string() : name_or_path;
}

/// "B is slower: launching 1000 kernels forward by 57 %, ...": the largest of one direction.
std::string sentence_of(const ProfileDiff& diff, bool slower) {
  std::vector<const OperationChange*> list;
  for (const OperationChange& change : diff.operations) {
    const double ratio = change.b_s / change.a_s;
    if (slower ? ratio > 1 + kSame : ratio < 1 - kSame) list.push_back(&change);
  }
  std::stable_sort(list.begin(), list.end(), [](const auto* x, const auto* y) {
    return std::abs(std::log(x->b_s / x->a_s)) > std::abs(std::log(y->b_s / y->a_s));
  });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(list.size(), 3); ++i) {
    const double ratio = list[i]->b_s / list[i]->a_s;
    text += fmt::format("{}{} takes {} {}", i == 0 ? "" : "; ", list[i]->what,
                        ratio > 1 ? (ratio >= 2 ? fmt::format("{:.1f} times as long", ratio)
                                                : percent(ratio - 1, 0))
                                  : percent(1 - ratio, 0),
                        ratio >= 2 ? "" : (ratio > 1 ? "longer" : "less time"));
    while (text.ends_with(' ')) text.pop_back();
  }
  if (list.size() > 3) text += fmt::format("; {} more", list.size() - 3);
  return text;
}

class ProfileVerb : public Verb {
 public:
  ProfileVerb()
      : Verb("profile", "compares two hardware profiles, or checks one before it is shared") {}

  void declare_flags(Command& command) override {
    command.add("ACTION", action_, "diff A B, or validate FILE...").required();
    command.add("PROFILE", names_,
                "clusters (calibrated profiles are clusters) or stacks: a shipped name or "
                "the path of a file");
    command.add("--stack", stack_, "the framework that clusters are compared with")
        .type_name("NAME")
        .shows_default();
    command.add("--cluster", cluster_, "the cluster that stacks are compared on")
        .type_name("NAME")
        .shows_default();
    command.add("--json", json_, "print one JSON document");
  }

  ExitCode run(const Context& context) override {
    if (action_ == "diff") {
      if (names_.size() != 2) {
        throw Error(fmt::format("shardwright profile diff takes two profiles, but {} were given.",
                                names_.size()),
                    ExitCode::kUsage);
      }
      diff(context.out);
      return ExitCode::kDone;
    }
    if (action_ == "validate") {
      if (names_.empty()) {
        throw Error("shardwright profile validate takes the path of a profile, but none was given.",
                    ExitCode::kUsage);
      }
      return validate(context.out);
    }
    throw Error(
        fmt::format("shardwright profile has no action '{}'; it has diff and validate.", action_),
        ExitCode::kUsage);
  }

 private:
  void diff(const Terminal& out) const {
    ProfileDiff diff = diff_profiles(names_[0], names_[1], stack_, cluster_);
    if (json_) return print_json(diff);
    diff.a = title_of(diff.a);
    diff.b = title_of(diff.b);
    const auto print = [&](const std::string& text) {
      for (const std::string& line : wrap(printable(text, out.utf8), out.columns)) {
        fmt::print(results(), "{}\n", line);
      }
    };
    if (diff.changes.empty()) {
      print(fmt::format("{} and {} are the same in all {} values.", diff.a, diff.b, diff.values));
      return;
    }
    print(fmt::format("{} of {} values differ.", diff.changes.size(), diff.values));
    const std::string slower = sentence_of(diff, true), faster = sentence_of(diff, false);
    if (!slower.empty()) print(fmt::format("With {}, {}.", diff.b, slower));
    if (!faster.empty()) {
      print(
          fmt::format("{}, {}.", slower.empty() ? "With " + diff.b : "On the other hand", faster));
    }
    if (slower.empty() && faster.empty()) {
      print("None of the operations below changes by more than half a per cent.");
    }
    Table operations(
        {{"operation"}, {diff.a, Align::kRight}, {diff.b, Align::kRight}, {"", Align::kRight}});
    for (const OperationChange& change : diff.operations) {
      operations.add_row({change.what, duration(change.a_s), duration(change.b_s),
                          change_text(change.b_s / change.a_s)});
    }
    fmt::print(results(), "{}{}", heading(out, "What operations take"), operations.render(out));
    Table values({{"value"},
                  {"A", Align::kRight},
                  {"B", Align::kRight},
                  {"", Align::kRight},
                  {"what it is"}});
    for (const ValueChange& change : diff.changes) {
      values.add_row({change.path, change.a, change.b, change_text(change.ratio), change.meaning});
    }
    fmt::print(results(), "{}{}", heading(out, "Values that differ"), values.render(out));
  }

  static void print_json(const ProfileDiff& diff) {
    nlohmann::ordered_json operations = nlohmann::ordered_json::array(),
                           values = nlohmann::ordered_json::array();
    for (const OperationChange& change : diff.operations) {
      operations.push_back({{"operation", change.what}, {"a_s", change.a_s}, {"b_s", change.b_s}});
    }
    for (const ValueChange& change : diff.changes) {
      nlohmann::ordered_json item{{"path", change.path}, {"a", change.a}, {"b", change.b}};
      item["ratio"] =
          change.ratio > 0 ? nlohmann::ordered_json(change.ratio) : nlohmann::ordered_json(nullptr);
      item["meaning"] = change.meaning;
      item["source"] = change.source;
      values.push_back(std::move(item));
    }
    fmt::print(results(), "{}\n",
               json_text(nlohmann::ordered_json{{"schema", "shardwright.profile_diff/1.0"},
                                                {"a", diff.a},
                                                {"b", diff.b},
                                                {"values", diff.values},
                                                {"changes", std::move(values)},
                                                {"operations", std::move(operations)}}));
  }

  ExitCode validate(const Terminal& out) const {
    bool good = true;
    nlohmann::ordered_json files = nlohmann::ordered_json::array();
    for (const std::string& name : names_) {
      if (!is_path(name)) {
        throw Error(
            fmt::format("'{}' is no path of a file: profile validate checks files that are "
                        "to be shared, such as ./{}.json.",
                        name, name));
      }
      const std::vector<Finding> findings = validate_profile(name);
      const auto errors =
          std::count_if(findings.begin(), findings.end(), [](const Finding& f) { return f.error; });
      good = good && errors == 0;
      if (json_) {
        nlohmann::ordered_json list = nlohmann::ordered_json::array();
        for (const Finding& finding : findings) {
          list.push_back({{"error", finding.error}, {"sentence", finding.sentence}});
        }
        files.push_back({{"file", name}, {"valid", errors == 0}, {"findings", std::move(list)}});
        continue;
      }
      fmt::print(results(), "{}: {}\n", name,
                 errors > 0 ? paint(out, Style::kRed, fmt::format("{} errors", errors))
                            : paint(out, Style::kGreen, "fit to be shared"));
      for (const Finding& finding : findings) {
        const auto lines = wrap(printable(finding.sentence, out.utf8), out.columns - 10);
        for (std::size_t i = 0; i < lines.size(); ++i) {
          fmt::print(results(), "  {:<8}{}\n",
                     i > 0           ? ""
                     : finding.error ? "error"
                                     : "remark",
                     lines[i]);
        }
      }
    }
    if (json_) {
      fmt::print(results(), "{}\n",
                 json_text(nlohmann::ordered_json{{"schema", "shardwright.profile_validation/1.0"},
                                                  {"valid", good},
                                                  {"files", std::move(files)}}));
    }
    return good ? ExitCode::kDone : ExitCode::kBadInput;
  }

  std::string action_;
  std::vector<std::string> names_;
  std::string stack_ = "native", cluster_ = "dgx-h100";
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_profile_verb() {
  return std::make_unique<ProfileVerb>();
}

}  // namespace shardwright::cli
