// SPDX-License-Identifier: Apache-2.0
// A plan as settings for another trainer: torchtitan, Accelerate, YaFSDP, DeepSpeed, axolotl,
// LLaMA-Factory, Unsloth, torchtune, Megatron-LM, Megatron-Bridge.
//
// A plan says more than any of them can be told. Whatever a trainer cannot express becomes a Remark
// and never vanishes, and `as_run` is the plan that the trainer then follows, so that what is lost
// can be predicted. One file per trainer in cli/trainers; cli/verbs/export.cc puts remarks and
// settings into one file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/export/source.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/job.h"

namespace shardwright::cli {

struct Remark {
  std::string knob;      // of the plan: "ckpt_layers"
  std::string sentence;  // what became of it
  bool lost = false;     // the trainer does something else than the plan says
};

struct TrainerSettings {
  AnySource body;  // the settings alone, in the trainer's own format
  std::vector<Remark> remarks;
  Plan as_run;                         // what the trainer does with them, as far as it is modelled
  std::vector<std::string> overrides;  // of the profile that `as_run` is predicted with

  void lost(std::string knob, std::string sentence);
  void said(std::string knob, std::string sentence);
};

struct Trainer {
  std::string_view name;   // as --format takes it
  std::string_view title;  // as people write it
  std::string_view what;   // of the file, with the release: "0.3 config (Python)"
  TrainerSettings (*settings)(const sim::Job& inputs, const Plan& plan);
};

/// All trainers, in the order of the documentation.
const std::vector<Trainer>& trainers();
/// Throws Error naming --format and the word.
const Trainer& trainer_named(const std::string& name);

/// The settings for one plan of `inputs`. Throw Error for a strategy that is nothing like what the
/// trainer does.
TrainerSettings torchtitan_settings(const sim::Job& inputs, const Plan& plan);
TrainerSettings torchtitan_main_settings(const sim::Job& inputs, const Plan& plan);
TrainerSettings torchtitan_toml_settings(const sim::Job& inputs, const Plan& plan);
TrainerSettings accelerate_settings(const sim::Job& inputs, const Plan& plan);
TrainerSettings yafsdp_settings(const sim::Job& inputs, const Plan& plan);
TrainerSettings deepspeed_settings(const sim::Job& inputs, const Plan& plan);
TrainerSettings axolotl_settings(const sim::Job& inputs, const Plan& plan);
TrainerSettings llama_factory_settings(const sim::Job& inputs, const Plan& plan);
TrainerSettings unsloth_settings(const sim::Job& inputs, const Plan& plan);
TrainerSettings torchtune_settings(const sim::Job& inputs, const Plan& plan);
TrainerSettings megatron_lm_settings(const sim::Job& inputs, const Plan& plan);
TrainerSettings megatron_bridge_settings(const sim::Job& inputs, const Plan& plan);

/// Throws Error naming what is model-parallel, for a trainer that divides data alone.
void refuse_model_parallel(const Plan& plan, std::string_view trainer);

/// How the ranks are arranged.
struct Ranks {
  std::int64_t shard = 1;      // ranks that share one copy of the parameters
  std::int64_t replicate = 1;  // such groups
  std::int64_t nodes = 1;
  std::int64_t per_node = 1;
};
Ranks ranks_of(const sim::Job& inputs, const Plan& plan);

/// The FSDP2 strategy that divides what `strategy` divides between forward and backward.
Strategy nearest_fsdp2(Strategy strategy);
/// Checkpointed layers under any policy.
std::int64_t checkpointed_layers(const Plan& plan);
/// Whatever `run` recomputed of how many before.
void recompute_all_layers(Plan& run, Recompute how, std::int64_t layers);
/// "20 of 80 layers".
std::string of_layers(std::int64_t count, std::int64_t layers);

/// What of the plan belongs to its software: says where another stack will run and sets
/// as_run.stack; that the loss comes in one piece; how to set the allocator.
void remark_stack(const Plan& plan, std::string_view trainer, std::string stack,
                  TrainerSettings& settings);
/// Gather buffers and prefetch distance, for a trainer that gathers one unit ahead of the one that
/// computes and has no setting for more.
void remark_gather_window(const Plan& plan, std::string_view trainer, std::string_view how,
                          TrainerSettings& settings);

// What the modules of a model are called in Transformers: classes that wrap policies name, and the
// paths at which a script finds layers, embedding, last norm and head.

/// From transformers/models/<package>/modeling_<package>.py; paths start at the ForCausalLM model.
struct ModuleNames {
  std::string_view package;      // "llama"
  std::string_view layer_class;  // "LlamaDecoderLayer"
  std::string_view norm_class;   // empty: torch.nn.LayerNorm
  std::string_view layers;       // "model.layers"
  std::string_view embedding;    // "model.embed_tokens"
  std::string_view positions;    // learned position embedding; empty: none
  std::string_view last_norm;    // "model.norm"
  std::string_view head;         // "lm_head"
};

/// For every family that families.h reads.
const ModuleNames& module_names(const Model& model);

// The file that `export` writes: settings under a head that says where they come from and what they
// cannot say.

/// `origin` are the sentences of the head. Comments where the format has them; in JSON a member
/// "_comment", which DeepSpeed skips like every key it does not know.
AnySource trainer_file(const Trainer& trainer, const TrainerSettings& settings,
                       const std::vector<std::string>& origin);

/// "ckpt_layers: 20 of 80 layers are ...".
std::string remark_text(const Remark& remark);

}  // namespace shardwright::cli
