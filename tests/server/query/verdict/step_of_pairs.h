// One step of two runs by hand, for tests of the model.
#ifndef STATCOLLECT_TESTS_SERVER_QUERY_VERDICT_STEP_OF_PAIRS_H_
#define STATCOLLECT_TESTS_SERVER_QUERY_VERDICT_STEP_OF_PAIRS_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "server/query/verdict/explain.h"
#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {

// The tensors of one step, with chosen distances.
class Step {
 public:
  struct Given {
    DType dtype = DType::kF32;
    double l2 = 1, l2_b = 1;
    std::uint64_t numel = kElements;
    std::vector<std::int64_t> shape = {32, 64};
    std::string class_name = "Module";
    double mean_abs = 0.02;  // l1 / numel
    std::int32_t depth = 2;
    double largest = 0;  // of the values
  };
  void Add(const TensorKey& key, double distance, const Given& given) {
    Stored& of = stored_.emplace_back();
    of.def.key = key;
    of.def.class_name = given.class_name;
    of.def.depth = given.depth;
    of.layout = {.dtype = given.dtype, .shape = given.shape};
    of.a.numel = of.b.numel = given.numel;
    of.a.l2 = given.l2;
    of.b.l2 = given.l2_b;
    of.a.l1 = of.b.l1 = given.mean_abs * static_cast<double>(given.numel);
    of.a.min = -given.largest;
    of.a.max = given.largest;
    of.sketch.assign(16, given.l2 / 4);
    const auto side = [&](const TensorStats& stats) {
      return Observation{
          .def = &of.def, .layout = &of.layout, .stats = &stats, .sketch = of.sketch};
    };
    pairs.push_back({.a = side(of.a), .b = side(of.b), .distance = distance});
  }
  void Add(const TensorKey& key, double distance) { Add(key, distance, Given()); }

  std::vector<TensorPair> pairs;

 private:
  struct Stored {
    TensorDef def;
    Layout layout;
    TensorStats a, b;
    std::vector<double> sketch;
  };
  std::deque<Stored> stored_;
};

inline TensorKey Gradient(const std::string& name) { return Key(name, Kind::kWeightGrad); }
inline TensorKey GradOutput(const std::string& name) { return Key(name, Kind::kGradOutput); }

}  // namespace statcollect::query

#endif  // STATCOLLECT_TESTS_SERVER_QUERY_VERDICT_STEP_OF_PAIRS_H_
