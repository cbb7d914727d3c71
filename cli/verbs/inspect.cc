// SPDX-License-Identifier: Apache-2.0
#include "cli/inspect/inspect.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <array>
#include <string>
#include <vector>

#include "cli/verbs/verbs.h"
#include "sim/core/base/words.h"

namespace shardwright::cli {
namespace {

struct Request {
  std::string kind;
  std::string name;
  std::optional<std::int64_t> seq_len{};
  Form form = Form::kText;
};

using Named = std::string (*)(const std::string& name, Form form, const Terminal& out);
using Listed = std::string (*)(Form form, const Terminal& out);

/// Each kind is one of the two, but for models, whose numbers depend on the sequence length.
struct Kind {
  const char* word;
  Named named = nullptr;    // takes a name or a path
  Listed listed = nullptr;  // lists what ships
  bool beyond_planning = false;

  bool takes_a_name() const { return listed == nullptr; }
  std::string show(const Request& request, const Terminal& out) const {
    if (listed != nullptr) return listed(request.form, out);
    if (beyond_planning && named == nullptr) {
      throw not_in_this_build(fmt::format("inspect {}", word));
    }
    if (named != nullptr) return named(request.name, request.form, out);
    return inspect_model(request.name, request.seq_len, request.form, out);
  }
};

constexpr std::array kKinds = {
    Kind{.word = "model"},
    Kind{.word = "plan", .named = inspect_plan},
    Kind{.word = "run", .named = SHARDWRIGHT_BEYOND_PLANNING(inspect_run), .beyond_planning = true},
    Kind{.word = "checkpoint",
         .named = SHARDWRIGHT_BEYOND_PLANNING(inspect_checkpoint),
         .beyond_planning = true},
    Kind{.word = "cluster", .named = inspect_cluster},
    Kind{.word = "gpu", .named = inspect_gpu},
    Kind{.word = "stack", .named = inspect_stack},
    Kind{.word = "profile", .named = inspect_calibration},
    Kind{.word = "models", .listed = list_models},
    Kind{.word = "clusters", .listed = list_clusters},
    Kind{.word = "gpus", .listed = list_gpus},
    Kind{.word = "stacks", .listed = list_stacks},
};

std::vector<std::string> kind_words() {
  std::vector<std::string> words;
  for (const Kind& kind : kKinds) words.emplace_back(kind.word);
  return words;
}

const Kind& find_kind(const Request& request) {
  const std::string kinds = fmt::format("{}", fmt::join(kind_words(), ", "));
  if (request.kind.empty()) {
    throw Error(fmt::format("shardwright inspect: no kind was given; the kinds are {}.", kinds),
                ExitCode::kUsage);
  }
  for (const Kind& kind : kKinds) {
    if (request.kind != kind.word) continue;
    if (kind.takes_a_name() && request.name.empty()) {
      throw Error(fmt::format("shardwright inspect {} needs a name or a path.", kind.word),
                  ExitCode::kUsage);
    }
    if (!kind.takes_a_name() && !request.name.empty()) {
      throw Error(
          fmt::format("shardwright inspect {} takes no further argument, but '{}' was given.",
                      kind.word, request.name),
          ExitCode::kUsage);
    }
    return kind;
  }
  const std::string hint = did_you_mean(request.kind, kind_words());
  throw Error(fmt::format("shardwright inspect has no kind '{}'{}", request.kind,
                          hint.empty() ? fmt::format("; the kinds are {}.", kinds) : hint),
              ExitCode::kUsage);
}

class InspectVerb : public Verb {
 public:
  InspectVerb()
      : Verb("inspect",
             "a model, plan, run file, checkpoint, cluster, gpu, stack or profile, in words") {}
  void declare_flags(Command& command) override {
    command
        .add("KIND", request_.kind,
             "what NAME is; models, clusters, gpus and stacks list what ships")
        .type_name(fmt::format("{}", fmt::join(kind_words(), "|")));
    command.add("NAME", request_.name, "a shipped name, or the path of a file");
    command.add("--seq-len", request_.seq_len,
                "sequence length for a model's operations per token (default: the model's, at most "
                "8192)",
                {1, 1 << 24});
    command.add("--json", json_, "print one JSON document");
  }
  ExitCode run(const Context& context) override {
    if (json_) request_.form = Form::kJson;
    fmt::print(results(), "{}", find_kind(request_).show(request_, context.out));
    return ExitCode::kDone;
  }

 private:
  Request request_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_inspect_verb() {
  return std::make_unique<InspectVerb>();
}

}  // namespace shardwright::cli
