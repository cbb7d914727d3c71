#include "cli/verb_doctor.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "cli/version.h"

namespace shardwright::cli {
namespace {

class DoctorVerb : public Verb {
 public:
  std::string name() const override { return "doctor"; }
  std::string summary() const override {
    return "what this machine has and lacks, and what to install";
  }
  void declare_flags(CLI::App& command) override {
    command.add_flag("--json", json_, "print one JSON document");
  }
  ExitCode run(const Context& /*context*/) override {
    fmt::print("{}\n", version_text());
    return ExitCode::kDone;
  }

 private:
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_doctor_verb() {
  return std::make_unique<DoctorVerb>();
}

}  // namespace shardwright::cli
