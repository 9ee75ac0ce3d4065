// Torch's headers name these types in declarations that nccl.cpp does not use. The libraries' own headers come only
// with the libraries, more than a gigabyte of them.
#pragma once
typedef struct cublasContext* cublasHandle_t;
typedef int cublasStatus_t;
