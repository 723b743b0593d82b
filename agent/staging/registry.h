// Interned identities and layouts of one agent. A handle names an identity. Its definition gets an
// id when the tensor is first observed, so ids follow the order of execution. Invariants:
// definition ids and layout ids are dense from 0; nothing is ever removed. Threads: Definitions
// from any; Registry is guarded by its owner.
#ifndef STATCOLLECT_AGENT_STAGING_REGISTRY_H_
#define STATCOLLECT_AGENT_STAGING_REGISTRY_H_

#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/placement.h"
#include "common/records.h"
#include "common/status.h"
#include "common/thread_annotations.h"

namespace statcollect {

// A TensorDef that borrows its texts.
struct IdentityView {
  std::string_view name;
  Kind kind = Kind::kUnspecified;
  std::string_view output_path;
  std::uint32_t micro_batch = 0;
  std::uint32_t call = 0;
  Mode mode = Mode::kTrain;
  std::string_view parent;
  std::string_view class_name;
  std::int32_t depth = 0;
};

// kInvalidArgument: names, enumerations, depth.
Status Validate(const IdentityView& identity);

// The definitions in the order of their ids, for sending.
class Definitions {
 public:
  void Add(TensorDef def);
  void Add(Layout layout);
  // Definitions with ids first .. last.
  std::vector<TensorDef> Activations(std::uint32_t first, std::uint32_t last) const;
  std::vector<Layout> Layouts(std::uint32_t first, std::uint32_t last) const;
  // Names of the first activations, each once, at most this many.
  std::set<std::string> Names(std::size_t names_max) const;

 private:
  mutable Mutex mutex_;
  std::vector<TensorDef> activations_ STATCOLLECT_GUARDED_BY(mutex_);
  std::vector<Layout> layouts_ STATCOLLECT_GUARDED_BY(mutex_);
};

class Registry {
 public:
  static constexpr std::size_t kActivationsMax = 1u << 20;
  static constexpr std::size_t kLayoutsMax = 1u << 16;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Activation {
    TensorDef def;  // def.id is valid once `defined`
    bool defined = false;
    std::uint64_t next_step = 0;  // the first step in which it may be observed (again)
    std::uint32_t last_layout = kNone;
  };

  explicit Registry(Definitions* definitions) : definitions_(definitions) {}

  // Returns the identity's handle; parent, class and depth are not part of it. kInvalidArgument;
  // kResourceExhausted when full.
  Result<std::uint32_t> Intern(const IdentityView& identity);
  // As Intern, with `call` counted from 0 within (step, rest of the identity).
  Result<std::uint32_t> InternNextCall(IdentityView identity, std::uint64_t step);

  // The same identity with a different call index.
  Result<std::uint32_t> InternCall(const Activation& activation, std::uint32_t call);

  // nullptr for a handle that was never returned; UnknownHandle() is the error to report.
  Activation* Find(std::uint32_t handle);
  static Status UnknownHandle(std::uint32_t handle);
  // Gives the activation's definition its id, if it has none, and publishes it.
  std::uint32_t Define(Activation* activation);
  // Id of the layout with this dtype, shape and placement (may be null); kNone if there is none
  // yet. `hint`: an id that is likely to be the right one.
  std::uint32_t FindLayout(DType dtype, std::span<const std::int64_t> shape,
                           const PlacementView* placement, std::uint32_t hint) const;
  // Whether a layout that FindLayout did not find may be added; the message names the tensor.
  // `placement` may be null.
  static Status CheckNewLayout(const Activation& activation, std::span<const std::int64_t> shape,
                               const PlacementView* placement);
  // Id of a new layout; kNone when full. Preconditions: FindLayout found none, CheckNewLayout is
  // OK.
  std::uint32_t AddLayout(DType dtype, std::span<const std::int64_t> shape,
                          const PlacementView* placement);

 private:
  struct KeyView {
    std::string_view name, output_path;
    Kind kind;
    Mode mode;
    std::uint32_t micro_batch, call;
    bool operator==(const KeyView&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const KeyView& key) const;
  };
  struct Calls {                  // of one identity without its call index
    std::uint64_t next_step = 0;  // counts from 0 again in this step
    std::uint32_t next_call = 0;
    std::vector<std::uint32_t> handles;  // by call index
  };

  static KeyView KeyOf(const IdentityView& identity);

  Definitions* const definitions_;
  std::deque<Activation> activations_;  // by handle; never moves, the keys below borrow from it
  std::unordered_map<KeyView, std::uint32_t, KeyHash> handles_;
  std::unordered_map<KeyView, Calls, KeyHash>
      calls_;  // keys have call = kNone and borrow from call 0's activation
  std::uint32_t defined_ = 0;
  std::deque<Layout> layouts_;
  std::unordered_multimap<std::size_t, std::uint32_t>
      layout_ids_;  // by hash of dtype, shape and placement
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_REGISTRY_H_
