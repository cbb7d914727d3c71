// SPDX-License-Identifier: Apache-2.0
#include "cli/machine/capabilities.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "exec/libraries/rules.h"

namespace shardwright::cli {
namespace {

/// What serves programs of that CUDA, as the end of a sentence.
std::string driver_way_out(int cuda_major) {
  const std::string drivers = exec::libraries::drivers_of(cuda_major);
  return drivers.empty() ? "" : ": driver " + drivers;
}

// Verbs that execute on this machine instead of calculating.
constexpr std::array<std::string_view, 2> kExecuting{"run", "measure"};

// Why components or executors are lacking; the first one decides, empty when none is.
class Needs {
 public:
  Needs(const Machine& machine, const BuildInfo& build) : machine_(machine), build_(build) {}

  Needs& verb(const std::string& name, const std::vector<std::string>& verbs) {
    if (std::find(verbs.begin(), verbs.end(), name) == verbs.end()) {
      fail(fmt::format("this build has no verb '{}'", name));
    }
    return *this;
  }
  Needs& executor(const std::string& name) {
    if (!build_.has_executor(name)) fail(fmt::format("this build has no {} executor", name));
    return *this;
  }
  Needs& component(std::string_view key) {
    const Component& found = machine_.component(key);
    if (!found.present) fail(fmt::format("no {}: {}", found.title, found.detail));
    return *this;
  }
  Needs& gpu() {
    component("cuda_driver").component("gpu").component("cublas_lt");
    // A driver runs programs of its own major CUDA version and of those before.
    const int built_for = build_.cuda_major();
    const int driver_for = machine_.driver_cuda_version / 1000;
    if (driver_for < built_for) {
      fail(fmt::format("the driver is for CUDA {}, but this build needs one for CUDA {}{}",
                       driver_for, built_for, driver_way_out(built_for)));
    }
    return *this;
  }
  Capability as(std::string name) const {
    return {.name = std::move(name), .available = reason_.empty(), .reason = reason_};
  }

 private:
  void fail(std::string reason) {
    if (reason_.empty()) reason_ = std::move(reason);
  }

  const Machine& machine_;
  const BuildInfo& build_;
  std::string reason_;
};

struct Package {
  std::string_view component;
  std::string_view apt;  // packages of Debian, Ubuntu or NVIDIA's apt repository
  std::string_view note;
};

constexpr std::array<Package, 10> kPackages{{
    {"cuda_toolkit", "cuda-toolkit",
     "to build the CUDA executor; from NVIDIA's apt repository (cuda-keyring)"},
    {"nccl", "libnccl2 libnccl-dev", "to train on several GPUs; from NVIDIA's apt repository"},
    {"cupti", "cuda-cupti-dev-13-0", "to trace kernels; part of every CUDA toolkit"},
    {"cudnn", "cudnn9-cuda-13", "for fused attention; from NVIDIA's apt repository"},
    {"cublas_lt", "libcublas-13-0", "to multiply on GPUs; from NVIDIA's apt repository"},
    {"nvrtc", "cuda-nvrtc-13-0", "cuDNN compiles with it; from NVIDIA's apt repository"},
    {"mpi", "libopenmpi-dev openmpi-bin", "to train on the CPUs of several machines"},
    {"cxx_compiler", "g++", "to build Shardwright"},
    {"cmake", "cmake", "to build Shardwright"},
    {"ninja", "ninja-build", "to build Shardwright faster"},
}};

Advice driver_advice(const Machine& machine) {
  Advice advice{.component = "cuda_driver", .title = machine.component("cuda_driver").title};
  if (machine.nvidia_devices == 0) {
    advice.note = "no NVIDIA GPU is on the PCI bus, so there is nothing for a driver to drive";
  } else if (machine.in_container) {
    advice.command = "docker run --gpus all ...";
    advice.note = "a container gets the driver from its host, when started this way";
  } else if (machine.operating_system.starts_with("Ubuntu")) {
    advice.command = "sudo ubuntu-drivers install";
  } else if (machine.has_apt) {
    advice.command = "sudo apt-get install nvidia-driver";
    advice.note = "from the non-free section";
  } else {
    advice.note = "install NVIDIA's driver with this system's package manager";
  }
  return advice;
}

}  // namespace

std::vector<Capability> capabilities(const Machine& machine, const BuildInfo& build,
                                     const std::vector<std::string>& verbs) {
  std::vector<Capability> all;
  for (const std::string& verb : verbs) {
    if (std::find(kExecuting.begin(), kExecuting.end(), verb) == kExecuting.end()) {
      all.push_back({.name = verb, .available = true, .calculates = true});
    }
  }
  const auto needs = [&](const std::string& verb, const std::string& executor) {
    return Needs(machine, build).verb(verb, verbs).executor(executor);
  };
  all.push_back(needs("run", "host").as("run --device host"));
  all.push_back(needs("run", "mpi").component("mpi").as("run --communicator mpi"));
  all.push_back(needs("run", "cuda").gpu().as("run --device cuda"));
  all.push_back(needs("run", "nccl").gpu().component("nccl").as("run --communicator nccl"));
  all.push_back(
      needs("run", "cupti").gpu().component("cupti").as("run --device cuda --trace FILE"));
  all.push_back(needs("measure", "host").as("measure --device host"));
  all.push_back(needs("measure", "cuda").gpu().as("measure --device cuda"));
  return all;
}

void note_what_rules_miss(std::vector<Component>& components) {
  for (Component& component : components) {
    const std::string note = exec::libraries::beyond_rules(component.key, component.version);
    if (note.empty()) continue;
    component.detail += component.detail.empty() ? note : "; " + note;
  }
}

std::vector<Advice> install_advice(const Machine& machine) {
  std::vector<Advice> all;
  if (!machine.has("cuda_driver")) all.push_back(driver_advice(machine));
  for (const Package& package : kPackages) {
    const Component& component = machine.component(package.component);
    if (component.present) continue;
    Advice& advice = all.emplace_back();
    advice.component = component.key;
    advice.title = component.title;
    advice.note = package.note;
    if (machine.has_apt) advice.command = fmt::format("sudo apt-get install {}", package.apt);
  }
  return all;
}

}  // namespace shardwright::cli
