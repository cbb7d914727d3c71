// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "cli/build_info.h"
#include "cli/machine/execution.h"
#include "cli/machine/machine.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/verbs/verbs.h"

namespace shardwright::cli {
namespace {

std::string gibibytes(Bytes bytes) {
  return fmt::format("{:.1f} GiB", gib(bytes));
}

// Everything that doctor found out.
struct Findings {
  BuildInfo build;
  Machine machine;
  std::vector<Capability> capabilities{};
  std::vector<Advice> advice{};
  DeviceChoice device{};
  CudaParts cuda{};
};

nlohmann::ordered_json as_json(const Findings& found) {
  nlohmann::ordered_json document{{"schema", "shardwright.doctor/1.0"},
                                  {"version", found.build.version}};
  nlohmann::ordered_json& built = document["built_with"];
  built = {{"compiler", found.build.compiler},
           {"build_type", found.build.build_type},
           {"sanitizers", text_or_null(found.build.sanitizers)},
           {"executors", found.build.executors}};
  for (const LibraryVersion& library : found.build.libraries) {
    built["libraries"][library.name] = text_or_null(library.version);
  }
  document["machine"] = {{"operating_system", found.machine.operating_system},
                         {"processor", found.machine.processor},
                         {"cores", found.machine.cores},
                         {"memory_bytes", found.machine.memory_bytes},
                         {"container", found.machine.in_container},
                         {"nvidia_pci_devices", found.machine.nvidia_devices}};
  document["components"] = json_list(found.machine.components,
                                     [&](const Component& component) -> nlohmann::ordered_json {
                                       return {{"key", component.key},
                                               {"title", component.title},
                                               {"present", component.present},
                                               {"version", text_or_null(component.version)},
                                               {"detail", component.detail}};
                                     });
  document["gpus"] =
      json_list(found.machine.gpus, [&](const InstalledGpu& gpu) -> nlohmann::ordered_json {
        return {{"name", gpu.name},
                {"memory_bytes", gpu.memory_bytes},
                {"compute_capability", gpu.compute_capability},
                {"multiprocessors", gpu.multiprocessors}};
      });
  document["peer_access"] = or_null(found.machine.peer_access);
  document["run"] = {{"device", name_of(found.device.kind)}, {"why", found.device.why}};
  if (!found.cuda.attention.empty()) {
    document["run"]["cuda"] = {{"attention", found.cuda.attention},
                               {"attention_lacks", text_or_null(found.cuda.attention_lacks)},
                               {"products", found.cuda.products},
                               {"communicator", found.cuda.communicator}};
  }
  document["capabilities"] =
      json_list(found.capabilities, [&](const Capability& capability) -> nlohmann::ordered_json {
        return {{"name", capability.name},
                {"available", capability.available},
                {"reason", text_or_null(capability.reason)}};
      });
  document["install"] =
      json_list(found.advice, [&](const Advice& advice) -> nlohmann::ordered_json {
        return {{"component", advice.component},
                {"command", text_or_null(advice.command)},
                {"note", text_or_null(advice.note)}};
      });
  return document;
}

Cell yes_or_no(bool yes) {
  return yes ? Cell("yes", Style::kGreen) : Cell("no", Style::kYellow);
}

void print_text(const Findings& found, const Terminal& out) {
  const auto heading = [&out](std::string_view text) {
    fmt::print(results(), "\n{}\n", paint(out, Style::kBold, text));
  };
  fmt::print(results(), "Shardwright {} on {}: {}, {} cores, {}\n", found.build.version,
             found.machine.operating_system, found.machine.processor, found.machine.cores,
             gibibytes(found.machine.memory_bytes));

  heading("What is here");
  Table components({"component", "found", left("version"), left("where, or why not")});
  for (const Component& component : found.machine.components) {
    components.add_row(
        {component.title, yes_or_no(component.present), component.version, component.detail});
  }
  fmt::print(results(), "{}", components.render(out));

  if (!found.machine.gpus.empty()) {
    heading("GPUs");
    Table gpus({"#", "name", "memory", "compute capability", "SMs"});
    for (std::size_t i = 0; i < found.machine.gpus.size(); ++i) {
      const InstalledGpu& gpu = found.machine.gpus[i];
      gpus.add_row(
          {i, gpu.name, gibibytes(gpu.memory_bytes), gpu.compute_capability, gpu.multiprocessors});
    }
    fmt::print(results(), "{}", gpus.render(out));
    if (found.machine.peer_access == false) {
      fmt::print(results(),
                 "They cannot read each other's memory: NCCL goes through the host's.\n");
    }
  }

  heading("What that allows");
  Table allowed({"", "", ""});
  std::vector<std::string> calculating;
  for (const Capability& capability : found.capabilities) {
    if (capability.calculates) calculating.push_back(capability.name);
  }
  allowed.add_row({fmt::format("{}", fmt::join(calculating, ", ")), yes_or_no(true)});
  for (const Capability& capability : found.capabilities) {
    if (capability.calculates) continue;
    allowed.add_row({capability.name, yes_or_no(capability.available), capability.reason});
  }
  fmt::print(results(), "{}", allowed.render(out));

  heading("What run uses unless told otherwise");
  Table used({"", ""});
  used.add_row({"device", fmt::format("{} ({})", name_of(found.device.kind), found.device.why)});
  if (!found.cuda.attention.empty()) {
    const std::string& lacks = found.cuda.attention_lacks;
    used.add_row({"attention on cuda", fmt::format("of {} the fastest that takes the shape{}{}",
                                                   fmt::join(found.cuda.attention, ", "),
                                                   lacks.empty() ? "" : "; ", lacks)});
    used.add_row({"products on cuda", found.cuda.products});
    used.add_row({"ranks on cuda", found.cuda.communicator});
  }
  fmt::print(results(), "{}", used.render(out));

  if (found.advice.empty()) return;
  heading("To install what is missing");
  Table install({"", "", ""});
  for (const Advice& advice : found.advice)
    install.add_row({advice.title, advice.command, advice.note});
  fmt::print(results(), "{}", install.render(out));
}

class DoctorVerb : public Verb {
 public:
  DoctorVerb() : Verb("doctor", "what this machine has and lacks, and what to install") {}
  void declare_flags(Command& command) override {
    command.add("--json", json_, "Print one JSON document");
  }
  ExitCode run(const Context& context) override {
    std::vector<std::string> verbs;
    for (const std::unique_ptr<Verb>& verb : make_verbs()) verbs.push_back(verb->name());
    Findings found{.build = build_info(), .machine = probe_machine()};
    note_what_rules_miss(found.machine.components);
    found.capabilities = capabilities(found.machine, found.build, verbs);
    found.advice = install_advice(found.machine);
    found.device = choose_device("auto", execution_offer());
    found.cuda = cuda_parts();
    if (json_) {
      fmt::print(results(), "{}\n", json_text(as_json(found)));
    } else {
      print_text(found, context.out);
    }
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
