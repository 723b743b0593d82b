// How large the terms of a bias's gradient are where the gradients of outputs were not compared, because the runs
// split the batch differently or did not record them.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_TERMS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_TERMS_H_

#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

namespace statcollect::query {

struct TensorPair;

// The gradient of a weight W is a sum of g x' over the rows of a batch, that of the bias a sum of g. If the products
// of different rows are unrelated, |dW| = |g| |x|: |g| is the norm of all terms, |x| that of one row. The elements of
// an output Wx are about |x| rms(W), so |g| = |dW| rms(W) / rms(output). In six models of the benchmark this was
// 0.9 to 1.25 times the recorded |g| of keys in two thirds of the cases, and 0.07 to 2.1 times in all.
// Steps must ascend. Not thread-safe. Cost: a look-up for each weight, and without gradients of outputs for each output.
class Terms {
 public:
  struct Size {
    double l2 = 0;    // of all terms
    double rows = 1;  // that are summed for each element
  };

  // Names must outlive this.
  void Step(std::span<const TensorPair> pairs);
  // Of the gradient of a parameter besides the module's `weight`, in the newest step. Empty if gradients of outputs
  // were compared in it, or what tells of them was not.
  std::optional<Size> Of(std::string_view bias, double elements) const;

 private:
  struct Module {
    double weight = 0;    // root mean square
    double gradient = 0;  // of the weight: norm, the smaller one of both runs
    double output = 0;    // root mean square
    double elements = 0;  // of all outputs in training
  };
  void Note(const TensorPair& pair);

  std::unordered_map<std::string_view, Module> modules_;
  bool compared_ = true;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_TERMS_H_
