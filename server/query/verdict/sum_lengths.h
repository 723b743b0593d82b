// How many terms were added up to compute a record, as far as shapes show.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_SUM_LENGTHS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_SUM_LENGTHS_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/query/pairs/tensor_pair.h"
#include "server/query/verdict/kernels.h"

namespace statcollect::query {

// Steps must ascend. Not thread-safe. Cost: a look-up for each pair.
class SumLengths {
 public:
  // Learns the step's shapes. Names must outlive this.
  void Step(std::span<const TensorPair> pairs);
  // For an output and its gradients: the elements in a row of the weight, or those that a norm
  // averages over. A module without parameters has the number of the nearest module around it that
  // has some, which may itself use them for what this one passes on. For a parameter's gradient and
  // for running statistics: the rows of the batch. At least 1; 1 for everything else.
  double Of(const TensorPair& pair) const;
  // Whether the runs may have computed the record with other algorithms of a convolution.
  bool IsOtherConvolution(const TensorPair& pair, OtherConvolutions other) const;

 private:
  struct Module {
    std::uint64_t step = 0;  // in which `elements` were counted
    double row = 0;          // elements of the longest row of its matrices
    double channels = 0;     // elements of its vectors
    double elements = 0;     // of all its outputs in a step
    bool winograd = false;   // its matrix is a filter of 3x3 and more
  };
  const Module* Find(std::string_view name) const;
  // The module whose parameters an output was computed with; null: none.
  const Module* OwnerOfParameters(std::string_view name) const;

  std::uint64_t step_ = 0;
  std::unordered_map<std::string_view, Module> modules_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_SUM_LENGTHS_H_
