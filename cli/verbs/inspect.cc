#include <fmt/core.h>
#include <fmt/ranges.h>

#include <array>
#include <string>
#include <vector>

#include "cli/inspect/calibration.h"
#include "cli/inspect/model.h"
#include "cli/inspect/plan.h"
#include "cli/inspect/profile.h"
#include "cli/inspect/run.h"
#include "cli/verbs/verbs.h"
#include "sim/core/nearest.h"

namespace shardwright::cli {
namespace {

struct Request {
  std::string kind;
  std::string name;
  std::int64_t seq_len = 2048;
  bool json = false;
};

struct Kind {
  const char* word;
  bool named;  // takes a name; the others list what ships
  std::string (*show)(const Request&, const Terminal&);
};

constexpr std::array kKinds = {
    Kind{"model", true,
         [](const Request& r, const Terminal& out) {
           return inspect_model(r.name, r.seq_len, r.json, out);
         }},
    Kind{"plan", true,
         [](const Request& r, const Terminal& out) { return inspect_plan(r.name, r.json, out); }},
    Kind{"run", true,
         [](const Request& r, const Terminal& out) { return inspect_run(r.name, r.json, out); }},
    Kind{"checkpoint", true,
         [](const Request& r, const Terminal& out) {
           return inspect_checkpoint(r.name, r.json, out);
         }},
    Kind{
        "cluster", true,
        [](const Request& r, const Terminal& out) { return inspect_cluster(r.name, r.json, out); }},
    Kind{"gpu", true,
         [](const Request& r, const Terminal& out) { return inspect_gpu(r.name, r.json, out); }},
    Kind{"stack", true,
         [](const Request& r, const Terminal& out) { return inspect_stack(r.name, r.json, out); }},
    Kind{"profile", true,
         [](const Request& r, const Terminal& out) {
           return inspect_calibration(r.name, r.json, out);
         }},
    Kind{"models", false,
         [](const Request& r, const Terminal& out) { return list_models(r.json, out); }},
    Kind{"clusters", false,
         [](const Request& r, const Terminal& out) { return list_clusters(r.json, out); }},
    Kind{"gpus", false,
         [](const Request& r, const Terminal& out) { return list_gpus(r.json, out); }},
    Kind{"stacks", false,
         [](const Request& r, const Terminal& out) { return list_stacks(r.json, out); }},
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
    if (kind.named && request.name.empty()) {
      throw Error(fmt::format("shardwright inspect {} needs a name or a path.", kind.word),
                  ExitCode::kUsage);
    }
    if (!kind.named && !request.name.empty()) {
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
  std::string name() const override { return "inspect"; }
  std::string summary() const override {
    return "a model, plan, run file, checkpoint, cluster, gpu, stack or profile, in words";
  }
  void declare_flags(Command& command) override {
    command.add(
        "KIND", request_.kind,
        "model, plan, run, checkpoint, cluster, gpu, stack or profile; models, clusters, gpus and "
        "stacks list what ships");
    command.add("NAME", request_.name, "a shipped name, or the path of a file");
    command.add("--seq-len", request_.seq_len, "sequence length for a model's operations per token",
                {1, 1 << 24});
    command.add("--json", request_.json, "print one JSON document");
  }
  ExitCode run(const Context& context) override {
    fmt::print("{}", find_kind(request_).show(request_, context.out));
    return ExitCode::kDone;
  }

 private:
  Request request_;
};

}  // namespace

std::unique_ptr<Verb> make_inspect_verb() {
  return std::make_unique<InspectVerb>();
}

}  // namespace shardwright::cli
