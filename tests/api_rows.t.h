/* api_rows.t.h: every public function with arguments that make a good call, one row each, for
 * tests/test_api.c. Parameter: ROW(name, kind, call). Each argument is written by what it is (AT a
 * place, X a tensor, ...): there the test puts NULL, stale, foreign and extreme ones in its turn.
 * Kinds: SAYS (a bad argument gives a message), QUIET (has nobody to tell: nothing happens). */

/* ---- ops ---- */
#define X(name) ROW(tl_##name##_at, SAYS, (AT, IN(F)))
TL_UNARY_OPS(X)
#undef X
#define X(name) ROW(tl_##name##_at, SAYS, (AT, IN(F), IN(F)))
TL_BINARY_OPS(X)
#undef X
ROW(tl_scale_at, SAYS, (AT, IN(F), DBL(2)))
ROW(tl_shift_at, SAYS, (AT, IN(F), DBL(2)))
ROW(tl_pow_at, SAYS, (AT, IN(F), DBL(2)))
ROW(tl_clamp_at, SAYS, (AT, IN(F), DBL(0), DBL(1)))
ROW(tl_floor_divide_at, SAYS, (AT, IN(IDS), IN(ENDS)))
ROW(tl_remainder_at, SAYS, (AT, IN(IDS), IN(ENDS)))
ROW(tl_logical_and_at, SAYS, (AT, IN(MASK), IN(F)))
ROW(tl_logical_or_at, SAYS, (AT, IN(MASK), IN(F)))
ROW(tl_logical_not_at, SAYS, (AT, IN(MASK)))
ROW(tl_masked_fill_at, SAYS, (AT, IN(F), IN(MASK), DBL(1)))
ROW(tl_where_at, SAYS, (AT, IN(MASK), IN(F), IN(F)))
ROW(tl_cast_at, SAYS, (AT, IN(F), DTYPE(TL_F64)))
ROW(tl_fill_at, SAYS, (AT, DTYPE(TL_F32), SHAPE(a->A, a->B), DBL(1)))
ROW(tl_scalar_at, SAYS, (AT, DTYPE(TL_F32), DBL(1)))
ROW(tl_reshape_at, SAYS, (AT, IN(F), SHAPE(a->B, a->A)))
ROW(tl_permute_at, SAYS, (AT, IN(F), SHAPE(1, 0)))
ROW(tl_transpose_at, SAYS, (AT, IN(F), INT(0), INT(1)))
ROW(tl_slice_at, SAYS, (AT, IN(F), INT(1), I64(0), I64(2), I64(1)))
ROW(tl_select_at, SAYS, (AT, IN(F), INT(1), I64(0)))
ROW(tl_expand_at, SAYS, (AT, IN(F), SHAPE(4, a->A, a->B)))
ROW(tl_diagonal_at, SAYS, (AT, IN(F), I64(1), INT(0), INT(1)))
ROW(tl_tril_at, SAYS, (AT, IN(F), I64(0)))
ROW(tl_triu_at, SAYS, (AT, IN(F), I64(0)))
ROW(tl_arange_at, SAYS, (AT, DTYPE(TL_F32), DBL(0), DBL(5), DBL(1)))
ROW(tl_contiguous_at, SAYS, (AT, IN(F)))
ROW(tl_detach_at, SAYS, (AT, IN(F)))
ROW(tl_concat_at, SAYS, (AT, INS(F, F), COUNT(2), INT(0)))
ROW(tl_stack_at, SAYS, (AT, INS(F, F), COUNT(2), INT(0)))
ROW(tl_slice_grad_at, SAYS, (AT, IN(F), I64(2 * a->B + 2), INT(1), I64(1), I64(2)))
ROW(tl_split_at, SAYS, (AT, IN(F), I64(1), INT(0), OUT(a->out), COUNT(2)))
ROW(tl_chunk_at, SAYS, (AT, IN(F), COUNT(2), INT(0), OUT(a->out)))
ROW(tl_split_sizes_at, SAYS, (AT, IN(F), PTR(a->sizes), COUNT(2), INT(1), OUT(a->out)))
ROW(tl_sum_at, SAYS, (AT, IN(F), SHAPE(1), false))
ROW(tl_mean_at, SAYS, (AT, IN(F), SHAPE(1), true))
ROW(tl_max_at, SAYS, (AT, IN(F), SHAPE(1), false))
ROW(tl_min_at, SAYS, (AT, IN(F), SHAPE(1), false))
ROW(tl_var_at, SAYS, (AT, IN(F), SHAPE(1), INT(1), false))
ROW(tl_argmax_at, SAYS, (AT, IN(F), INT(1), false))
ROW(tl_mse_at, SAYS, (AT, IN(F), IN(F)))
ROW(tl_cumsum_at, SAYS, (AT, IN(F), INT(1), true))
ROW(tl_argsort_at, SAYS, (AT, IN(F), INT(1), true))
ROW(tl_sort_at, SAYS, (AT, IN(F), INT(1), true, OUT_MAYBE(a->out)))
ROW(tl_topk_at, SAYS, (AT, IN(F), I64(1), INT(1), true, OUT_MAYBE(a->out)))
ROW(tl_sum_to_at, SAYS, (AT, IN(F), SHAPE(a->B), tensor(a, TL_NONE, false)))
ROW(tl_matmul_at, SAYS, (AT, IN(F), IN(FT)))
ROW(tl_matmul_acc64_at, SAYS, (AT, IN(F), IN(FT)))
ROW(tl_matmul_to_at, SAYS, (AT, IN(F), IN(FT), DTYPE(TL_F32)))
ROW(tl_mm_at, SAYS, (AT, IN(F), IN(FT)))
ROW(tl_bmm_at, SAYS, (AT, IN(CUBE), IN(CUBE)))
ROW(tl_addmm_at, SAYS, (AT, IN(SQUARE), IN(F), IN(FT), DBL(1), DBL(1)))
ROW(tl_conv1d_at, SAYS, (AT, IN(CUBE), IN(CUBE), convs(a)))
ROW(tl_conv2d_at, SAYS, (AT, IN(IMAGE), IN(IMAGE), convs(a)))
ROW(tl_max_pool1d_at, SAYS, (AT, IN(CUBE), (tl_pool_options){.kernel = {I64(1)}}))
ROW(tl_max_pool2d_at, SAYS, (AT, IN(IMAGE), (tl_pool_options){.kernel = {I64(1), 1}}))
ROW(tl_avg_pool1d_at, SAYS, (AT, IN(CUBE), (tl_pool_options){.kernel = {I64(1)}}))
ROW(tl_avg_pool2d_at, SAYS, (AT, IN(IMAGE), (tl_pool_options){.kernel = {I64(1), 1}}))
ROW(tl_pad_at, SAYS, (AT, IN(F), INT(1), I64(1), I64(2), DBL(0)))
ROW(tl_softmax_at, SAYS, (AT, IN(F), INT(1)))
ROW(tl_log_softmax_at, SAYS, (AT, IN(F), INT(1)))
ROW(tl_logsumexp_at, SAYS, (AT, IN(F), SHAPE(1), false))
ROW(tl_rms_norm_dims_at, SAYS, (AT, IN(F), INT(1), DBL(1e-5)))
ROW(tl_rms_norm_at, SAYS, (AT, IN(F), MAYBE(ROW3), DBL(1e-5), OUT_MAYBE(a->out)))
ROW(tl_rms_norm_plus_one_at, SAYS, (AT, IN(F), MAYBE(ROW3), DBL(1e-5), OUT_MAYBE(a->out)))
ROW(tl_add_rms_norm_at, SAYS,
    (AT, IN(F), IN(F), MAYBE(ROW3), DBL(1e-5), OUT_MAYBE(a->out), OUT_MAYBE(a->out + 1)))
ROW(tl_layer_norm_at, SAYS,
    (AT, IN(F), MAYBE(ROW3), MAYBE(ROW3), DBL(1e-5), OUT_MAYBE(a->out), OUT_MAYBE(a->out + 1)))
ROW(tl_rotary_at, SAYS, (AT, IN(Q), IN(TABLE), IN(TABLE), ENUM(TL_ROTARY_HALF)))
ROW(tl_rotary_turned_at, SAYS, (AT, IN(Q), IN(TABLE), IN(TABLE), ENUM(TL_ROTARY_HALF)))
ROW(tl_rotary_inplace_at, SAYS, (AT, IN(Q), IN(TABLE), IN(TABLE), ENUM(TL_ROTARY_INTERLEAVED)))
ROW(tl_rotary_halves_at, SAYS, (AT, IN(Q), IN(Q), IN(TABLE), IN(TABLE), false, OUT(a->out)))
ROW(tl_rotary_ids_at, SAYS,
    (AT, IN(Q), IN(TABLE), IN(TABLE), IN(IDS2), INT(2), ENUM(TL_ROTARY_HALF)))
ROW(tl_rotary_offsets_at, SAYS,
    (AT, IN(Q), IN(LONGTABLE), IN(LONGTABLE), IN(IDS), INT(2), ENUM(TL_ROTARY_HALF)))
ROW(tl_positions_at, SAYS, (AT, IN(IDS), MAYBE(IDS), I64(a->B)))
ROW(tl_rotary_widen_at, SAYS, (AT, IN(TABLE), ENUM(TL_ROTARY_HALF)))
ROW(tl_rotary_table, QUIET,
    (I64(0), COUNT(2), I64_SMALL(4), DBL(1e4), ENUM(TL_ROTARY_HALF), PTR(a->floats),
     PTR(a->floats + 64)))
ROW(tl_rotary_table64, QUIET,
    (I64(0), COUNT(2), I64_SMALL(4), DBL(1e4), ENUM(TL_ROTARY_HALF), scaling(a), PTR(a->doubles),
     PTR(a->doubles + 32)))
ROW(tl_rotary_table_scaled, QUIET,
    (I64(0), COUNT(2), I64_SMALL(4), DBL(1e4), ENUM(TL_ROTARY_HALF), scaling(a), PTR(a->floats),
     PTR(a->floats + 64)))
ROW(tl_embedding_at, SAYS, (AT, IN(F), IN(IDS)))
ROW(tl_embedding_padded_at, SAYS, (AT, IN(F), IN(IDS), I64(0)))
ROW(tl_embedding_acc64_at, SAYS, (AT, IN(F), IN(IDS)))
ROW(tl_gather_at, SAYS, (AT, IN(F), IN(IDS2), INT(1)))
ROW(tl_scatter_add_dim_at, SAYS, (AT, IN(F), IN(IDS2), INT(1), SHAPE(a->A, a->B)))
ROW(tl_index_select_at, SAYS, (AT, IN(F), INT(0), IN(IDS)))
ROW(tl_one_hot_at, SAYS, (AT, IN(IDS), I64(a->B), DTYPE(TL_F32)))
ROW(tl_cross_entropy_at, SAYS, (AT, IN(F), IN(IDS), losses(a, DBL(0.1))))
ROW(tl_uniform_at, SAYS, (AT, DTYPE(TL_F32), SHAPE(2, 3), draws(a)))
ROW(tl_normal_at, SAYS, (AT, DTYPE(TL_F32), SHAPE(2, 3), draws(a)))
ROW(tl_bernoulli_at, SAYS, (AT, IN(F), draws(a)))
ROW(tl_permutation_at, SAYS, (AT, I64(5), draws(a)))
ROW(tl_bce_with_logits_at, SAYS, (AT, IN(F), IN(F), bces(a)))
ROW(tl_nll_at, SAYS, (AT, IN(F), IN(IDS), losses(a, 0)))
ROW(tl_attention_at, SAYS, (AT, IN(Q), IN(Q), IN(Q), written_out(a)))
ROW(tl_causal_mask_at, SAYS, (AT, I64(a->A), I64(a->B), ranges(a)))
ROW(tl_dropout_at, SAYS, (AT, IN(F), drops(a)))
ROW(tl_square_sum_at, SAYS, (AT, IN(F)))
ROW(tl_sgd_update_at, SAYS,
    (AT, IN(P), IN(F), MAYBE(V), IN(RATE), IN(RATE), (tl_sgd_attrs){.momentum = DBL(0.9)}))
ROW(tl_store_at, SAYS, (AT, IN(P), IN(F)))
ROW(tl_master_at, SAYS, (AT, IN(V), IN(HALF)))
ROW(tl_adamw_update_at, SAYS,
    (AT, INS(P, F, V, V2, RATE, RATE, RATE, RATE),
     (tl_adamw_attrs){.beta1 = DBL(0.9), .beta2 = DBL(0.9), .eps = DBL(1e-8)}))

/* ---- the op interface ---- */
ROW(tl_apply1, SAYS, (AT, op(a), NULL, INS(F, F), COUNT(2)))
ROW(tl_apply, SAYS_VOID, (AT, op(a), NULL, INS(F, F), COUNT(2), OUT(a->out)))
ROW(tl_tape_reserve, SAYS, (T, U32(4), COUNT(2)))
ROW(tl_tape_scratch, QUIET, (T, SIZE(100)))
ROW(tl_usable, SAYS, (AT, IN(F), "x"))
ROW(tl_shape_of, QUIET, (T, IN(F)))
ROW(tl_dtype_of, QUIET, (T, IN(F)))
ROW(tl_array_of, QUIET, (T, IN(F), PTR(a->array)))
ROW(tl_op_count, QUIET, ())
ROW(tl_op_at, QUIET, (INT(0)))
ROW(tl_op_find, QUIET, (NAME("add")))
ROW(tl_saves_other, QUIET, (U32(3)))
ROW(tl_call_fail, NOT, "a kernel's: its call is the engine's")
ROW(tl_pointwise_shape, NOT, "a kernel's: its call is the engine's")
ROW(tl_batch_meet, NOT, "a rule's: its call is the engine's")
ROW(tl_batch_aligned, NOT, "a rule's: its call is the engine's")
ROW(tl_batch_linear, NOT, "a rule's: its call is the engine's")
ROW(tl_batch_bilinear, NOT, "a rule's: its call is the engine's")
ROW(tl_batch_continuing, NOT, "a rule's: its call is the engine's")
ROW(tl_batch_rows, NOT, "a rule's: its call is the engine's")
ROW(tl_batch_reduced, QUIET, (0, I64(2), false))
ROW(tl_batch_outside, QUIET, (0, INT(2), I64(1)))
ROW(tl_batch_beside, QUIET, (0, INT(2), I64(-1)))
ROW(tl_pointwise_run, NOT, "a kernel's: its call is the engine's")
ROW(tl_matmul_with, NOT, "a kernel's: its call is the engine's")

/* ---- the tape ---- */
ROW(tl_tape_new, SAYS, (MODEL_MAYBE))
ROW(tl_tape_model, QUIET, (T))
ROW(tl_tape_reset, QUIET, (T))
ROW(tl_failed, QUIET, (T))
ROW(tl_error, QUIET, (T))
ROW(tl_error_status, QUIET, (T))
ROW(tl_error_clear, QUIET, (T))
ROW(tl_error_record, QUIET, (T))
ROW(tl_free_objects, QUIET, (PTR(a->nulls), 2))
ROW(tl_data_tape_at, SAYS,
    (T, PTR(a->floats), NULL, DTYPE(TL_F32), SHAPE(2, 3), PTR_MAYBE(__FILE__), INT(1)))
ROW(tl_data_model_at, SAYS,
    (MODEL, PTR(a->floats), NULL, DTYPE(TL_F32), SHAPE(2, 3), PTR_MAYBE(__FILE__), INT(1)))
ROW(tl_zeros_tape_at, SAYS, (T, DTYPE(TL_F32), SHAPE(2, 3), PTR_MAYBE(__FILE__), INT(1)))
ROW(tl_zeros_model_at, SAYS, (MODEL, DTYPE(TL_F32), SHAPE(2, 3), PTR_MAYBE(__FILE__), INT(1)))
ROW(tl_constant_at, SAYS, (AT, PTR(a->floats), NULL, DTYPE(TL_F32), SHAPE(2, 3)))
ROW(tl_bound_at, SAYS, (AT, PTR(a->floats), NULL, DTYPE(TL_F32), SHAPE(2, 3)))
ROW(tl_host, SAYS, (T, ENUM(TL_BEFORE), FUNCTION(host), NULL))
ROW(tl_traced, QUIET, (T))
ROW(tl_host_hold, QUIET, (T, PTR_NULL))
ROW(tl_object_hold, QUIET, (PTR_NULL))
ROW(tl_object_release, QUIET, (PTR_NULL))
ROW(tl_object_begin, QUIET, (PTR_NULL, TL_KIND_TAPE, NULL))
ROW(tl_lives, QUIET, (T))
ROW(tl_object_give, QUIET, (PTR_NULL))
ROW(tl_object_take, QUIET, (PTR_NULL))
ROW(tl_object_given, QUIET, (PTR_NULL))
ROW(tl_object_end, QUIET, (PTR_NULL))
ROW(tl_error_begin, QUIET, (PTR_NULL))
ROW(tl_warnings, QUIET, (false))
ROW(tl_batch_of, QUIET, (T, IN(F)))
ROW(tl_batch_axis_tape_at, SAYS, (T, IN(F), INT(1), PTR_MAYBE(__FILE__), INT(1)))
ROW(tl_batch_axis_model_at, SAYS, (MODEL, IN(V), INT(1), PTR_MAYBE(__FILE__), INT(1)))
ROW(tl_watch_at, SAYS, (AT, IN(ONE), PTR(a->doubles)))
ROW(tl_item_at, SAYS, (AT, IN(ONE)))
ROW(tl_keep_at, SAYS, (AT, IN(F), PTR(a->floats), BYTES(24)))
ROW(tl_assign_at, SAYS, (AT, IN(P), IN(F)))
ROW(tl_write, SAYS, (MODEL, IN(P), PTR(a->floats), BYTES(24)))
ROW(tl_print_at, SAYS, (AT, STREAM, IN(F)))
ROW(tl_sha256_at, SAYS, (AT, IN(F), PTR(a->hex)))
ROW(tl_require_grad_at, SAYS, (AT, IN(F)))
ROW(tl_segment_begin, QUIET, (T))
ROW(tl_segment_end_at, SAYS, (AT, U32(a->nodes), INS(LOSS), COUNT(1), true))
ROW(tl_mode_push, QUIET, (T, U32(TL_NO_GRAD)))
ROW(tl_mode_pop, QUIET, (T, INT(0)))
ROW(tl_mode, QUIET, (T))
ROW(tl_place_push, QUIET, (AT))
ROW(tl_share_push, QUIET, (AT, true))
ROW(tl_place_pop, QUIET, (T, INT(0)))
ROW(tl_tape_need, NOT, "the macros TL_NEED_AT call it")
ROW(tl_need, NOT, "the macros TL_NEED call it")
ROW(tl_tape_fail, QUIET, (AT, ENUM(TL_EUSAGE), "%d", 1))
ROW(tl_backward_at, SAYS, (AT, IN(LOSS), (tl_backward_options){.cotangent = MAYBE(ONE)}))
ROW(tl_grad_at, SAYS, (AT, IN(P)))
ROW(tl_gradients_at, SAYS, (AT, IN(LOSS), INS(P), COUNT(1), MAYBE(ONE), OUT(a->out)))
ROW(tl_explain_invariance, SAYS, (T, IN(LOSS), PTR(a->text), SIZE(sizeof a->text)))
ROW(tl_grad_clear, QUIET, (T))
ROW(tl_accumulating_count, QUIET, (T))
ROW(tl_accumulating_at, QUIET, (T, INT(0)))
ROW(tl_accumulator_open, SAYS,
    (T, NAME("w"), INT(0), NAME("sum"), DTYPE(TL_F64), SHAPE(4), PTR(a->array)))
ROW(tl_accumulate, SAYS, (T, NAME("w")))
ROW(tl_waiting_at, QUIET, (T, INT(0)))
ROW(tl_memory_stats, QUIET, (T))
ROW(tl_tape_limit, QUIET, (T, INT(100)))
ROW(tl_tape_steps, SAYS, (AT, INT_SMALL(1)))
ROW(tl_record_with, QUIET, (T_CLEAR, PTR_NULL, NULL))
ROW(tl_observe, SAYS, (T, PTR(&observer), NULL))
ROW(tl_observe_end, QUIET, (T, PTR(&observer)))
ROW(tl_observed, QUIET, (T, PTR(&observer)))
ROW(tl_update_begin, QUIET, (T))
ROW(tl_update_end, QUIET, (T))

/* ---- the checks of gradients ---- */
ROW(tl_verdict_name, QUIET, (ENUM(TL_RIGHT)))
ROW(tl_gradcheck_at, SAYS,
    (AT, FUNCTION(checked), INS(F), COUNT(1), NULL,
     (tl_gradcheck_options){.directions = INT_SMALL(1)}, OUT_MAYBE(a->report)))
ROW(tl_gradgradcheck_at, SAYS,
    (AT, FUNCTION(checked), INS(F), COUNT(1), NULL,
     (tl_gradcheck_options){.elements = INT_SMALL(1)}, OUT_MAYBE(a->report)))
ROW(tl_gradcheck_curve_at, SAYS,
    (AT, FUNCTION(checked), INS(F), COUNT(1), NULL, INT(0), I64(0), STREAM, ENUM(TL_CURVE_CSV)))

/* ---- logs ---- */
ROW(tl_log_open_at, SAYS, (AT, PATH(a->log), (tl_log_options){.every = I64(1), .keep = I64(1)}))
ROW(tl_log_step, QUIET, (T))
ROW(tl_log_reached, QUIET, (T, IN(F)))
ROW(tl_log_name, QUIET, (T, IN(F), NAME("x")))
ROW(tl_log_error, QUIET, (T))
ROW(tl_log_close_at, SAYS, (AT))
ROW(tl_log_values_path, QUIET, (PTR(a->text), SIZE(sizeof a->text), NAME("x"), I64(1)))

/* ---- graphs ---- */
ROW(tl_trace_at, SAYS,
    (AT, FUNCTION(program), INS(F), COUNT(1), COUNT(1), NULL, (tl_graph_options){0}))
ROW(tl_graph_run_at, SAYS,
    (PTR_MAYBE(__FILE__), INT(1), GRAPH, INS(F), COUNT(1), OUT(a->out), COUNT(1)))
ROW(tl_compile_with, SAYS, (T, FUNCTION(program), COUNT(1), NULL, (tl_graph_options){0}))
ROW(tl_run_at, SAYS, (PTR_MAYBE(__FILE__), INT(1), COMPILED, INS(F), COUNT(1), OUT(a->out)))
ROW(tl_compiled_count, QUIET, (COMPILED))
ROW(tl_compiled_at, QUIET, (COMPILED, INT(0)))
ROW(tl_graph_print, SAYS, (GRAPH, STREAM))
ROW(tl_graph_dot, SAYS, (GRAPH, STREAM))
ROW(tl_graph_explain, SAYS, (GRAPH, STREAM))
ROW(tl_graph_stats_of, QUIET, (GRAPH))
ROW(tl_graph_report, QUIET, (GRAPH, STREAM))
ROW(tl_graph_replaced, QUIET, (GRAPH, NAME("silu")))

/* ---- replacements ---- */
ROW(tl_register_replacement_with, ALONE, (ERR, replacement(a)))
ROW(tl_replacement_enable, QUIET, (NAME("silu"), true))
ROW(tl_replacement_at, QUIET, (INT(0)))
ROW(tl_replacement_check, SAYS, (NAME("silu"), 1, INT_SMALL(1), ERR))
ROW(tl_replacement_compare, SAYS,
    (NAME("silu"), INT(0), DTYPE(TL_F32), PTR_MAYBE(a->shapes), false, 1, INT_SMALL(1), ERR))
ROW(tl_match_input, QUIET, (PTR_NULL, NAME("x")))
ROW(tl_match_constant, QUIET, (PTR_NULL, NAME("x")))
ROW(tl_match_scalar, QUIET, (PTR_NULL, NAME("x")))
ROW(tl_match_place, QUIET, (PTR_NULL, PTR(a->ints)))

/* ---- kernels ---- */
ROW(tl_kernel_register_at, ALONE, (AT, kernel(a)))
ROW(tl_kernel_push_at, SAYS, (AT, NAME_MAYBE("matmul"), DTYPE_ANY(TL_F32), NAME("invariant")))
ROW(tl_kernel_of_at, QUIET, (AT, IN(LOSS)))
ROW(tl_probe_numbers, SAYS, (T, DTYPE(TL_F32), SHAPE(2, 3), INT(0), true))
ROW(tl_kernel_check, QUIET,
    (NAME("matmul"), DTYPE(TL_F32), NAME("fast"), PTR(a->text), SIZE(sizeof a->text)))
ROW(tl_kernel_at, QUIET, (INT(0), PTR(a->row)))

/* ---- models ---- */
ROW(tl_model_new_with, NOT, "makes an object; its only argument is a number")
ROW(tl_model_seed, QUIET, (MODEL))
ROW(tl_model_reseed, QUIET, (MODEL, 1))
ROW(tl_param_at, SAYS,
    (AT, MODEL_OF_TAPE, NAME("new"), DTYPE(TL_F32), SHAPE(2, 3),
     (tl_init){ENUM(TL_INIT_NORMAL), DBL(1)}))
ROW(tl_buffer_at, SAYS, (AT, MODEL_OF_TAPE, NAME("new"), DTYPE(TL_F32), SHAPE(2, 3)))
ROW(tl_buffer_filled_at, SAYS,
    (AT, MODEL_OF_TAPE, NAME("new"), DTYPE(TL_F32), SHAPE(2, 3), FUNCTION(filler), NULL))
ROW(tl_model_count, QUIET, (MODEL))
ROW(tl_model_at, QUIET, (MODEL, INT(0)))
ROW(tl_model_find, QUIET, (MODEL, NAME("w")))
ROW(tl_model_freeze, QUIET, (MODEL, NAME("w"), true))
ROW(tl_model_changed, QUIET, (MODEL))
ROW(tl_model_state, QUIET, (MODEL))
ROW(tl_buffer_take, QUIET, (MODEL, NAME("w"), a))
ROW(tl_buffer_drop, QUIET, (MODEL, a))
ROW(tl_model_mark, QUIET, (MODEL))
ROW(tl_model_rollback, QUIET, (MODEL, U32(100)))
ROW(tl_save_with, SAYS, (MODEL, PATH(a->fresh), (tl_part){.only = NULL}))
ROW(tl_load_with, SAYS, (MODEL, PATH(a->saved), (tl_part){.only = NULL}))
ROW(tl_model_sha256, SAYS, (MODEL, PTR(a->hex)))
ROW(tl_model_parameters, QUIET, (MODEL))

/* ---- nn ---- */
ROW(tl_linear_at, LAYER,
    (AT, MODEL_OF_TAPE, NAME("n"), IN(F), I64(4), (tl_linear_options){.dtype = DTYPE(TL_F32)}))
ROW(tl_embed_at, LAYER,
    (AT, MODEL_OF_TAPE, NAME("n"), IN(IDS), I64(4), I64(2), DBL(1), DTYPE(TL_F32),
     (tl_layer_options){0}))
ROW(tl_norm_at, LAYER, (AT, MODEL_OF_TAPE, NAME("n"), IN(F), DBL(1e-5), (tl_layer_options){0}))
ROW(tl_norm_layer_at, LAYER,
    (AT, MODEL_OF_TAPE, NAME("n"), IN(F), DBL(1e-5), (tl_layer_options){0}))
ROW(tl_recur_at, SAYS,
    (AT, IN(CUBE), IN(UNITS), ENUM(TL_RNN_TANH), (tl_recur_options){.cells = OUT_MAYBE(a->out)}))
ROW(tl_convolve1d_at, LAYER,
    (AT, MODEL_OF_TAPE, NAME("n"), IN(CUBE), I64_SMALL(2),
     (tl_convolve_options){.kernel = {I64_SMALL(2)}, .stride = {I64_SMALL(1)}}))
ROW(tl_convolve2d_at, LAYER,
    (AT, MODEL_OF_TAPE, NAME("n"), IN(IMAGE), I64_SMALL(2),
     (tl_convolve_options){.kernel = {I64_SMALL(1), I64_SMALL(1)}, .groups = I64_SMALL(1)}))
ROW(tl_recurrent_at, LAYER,
    (AT, MODEL_OF_TAPE, NAME("n"), IN(CUBE), I64_SMALL(2), ENUM(TL_LSTM), recurs(a)))
ROW(tl_batch_norm_at, LAYER,
    (AT, MODEL_OF_TAPE, NAME("n"), IN(IMAGE),
     (tl_channel_norm_options){.eps = DBL(1e-5), .momentum = DBL(0.1)}))
ROW(tl_group_norm_at, LAYER,
    (AT, MODEL_OF_TAPE, NAME("n"), IN(IMAGE), I64_SMALL(1),
     (tl_channel_norm_options){.eps = DBL(1e-5)}))
ROW(tl_mlp_gelu_at, LAYER,
    (AT, MODEL_OF_TAPE, NAME("n"), IN(F), I64(4),
     (tl_mlp_gelu_options){.deviation = DBL(1), .out_scale = DBL(1)}))
ROW(tl_mlp_swiglu_at, LAYER,
    (AT, MODEL_OF_TAPE, NAME("n"), IN(F), I64(4), (tl_mlp_swiglu_options){.out_scale = DBL(1)}))
ROW(tl_kv_cache_new, SAYS, (MODEL, DTYPE(TL_F32), I64(1), I64(2), I64(1), I64(4), I64(2)))
ROW(tl_self_attention_at, LAYER, (AT, MODEL_OF_TAPE, NAME("n"), IN(WIDE), attends(a)))
ROW(tl_llama_at, LAYER,
    (AT, MODEL_OF_TAPE, llama(a), IN(IDS2), (tl_decoder_options){.columns = columns(a)}))
ROW(tl_llama_cache, SAYS, (MODEL, llama(a), I64(2), I64(4)))
ROW(tl_gpt2_at, LAYER, (AT, MODEL_OF_TAPE, gpt2(a), IN(IDS2), decodes(a)))
ROW(tl_gpt2_cache, SAYS, (MODEL, gpt2(a), I64(2), I64(4)))
ROW(tl_decoder_at, LAYER,
    (AT, MODEL_OF_TAPE, decoder(a), IN(IDS2), (tl_decoder_options){.columns = columns(a)}))
ROW(tl_decoder_cache, LAYER, (MODEL, decoder(a), I64(2), I64(4)))
ROW(tl_hf_load_with, LAYER,
    (MODEL, PATH(TL_ROOT "/tests/corpus/llama"), PTR(a->loaded),
     (tl_model_files){.dtype = DTYPE_ANY(TL_DTYPE_DEFAULT)}))
ROW(tl_hf_save_with, LAYER,
    (MODEL, PTR(a->dir.path), decoder(a), (tl_model_files){.shard_bytes = I64_SMALL(100)}))
ROW(tl_llmc_load_with, LAYER,
    (MODEL, PATH(TL_ROOT "/tests/corpus/gpt2.llmc"), PTR(a->loaded),
     (tl_model_files){.dtype = DTYPE_ANY(TL_DTYPE_DEFAULT)}))
ROW(tl_llmc_save_with, LAYER,
    (MODEL, PATH(a->fresh), of_llmc(a), (tl_model_files){.dtype = DTYPE(TL_F32)}))
ROW(tl_llmc_tokens_load, SAYS, (MODEL, PATH(TL_ROOT "/tests/corpus/tokens.llmc")))
ROW(tl_llmc_tokens_save, SAYS, (PATH(a->fresh), PTR(a->sizes), COUNT(2), ERR))
ROW(tl_tokenizer_open, SAYS,
    (PTR(a->tokenizers), PATH(TL_ROOT "/tests/corpus/gpt2.tokenizer.json"), ERR))
ROW(tl_tokenizer_open_memory, NOT, "tl_tokenizer_open calls it")
ROW(tl_tokenizer_close, QUIET, (PTR_NULL))
ROW(tl_tokenizer_size, QUIET, (TOKENIZER))
ROW(tl_tokenizer_encode, QUIET,
    (TOKENIZER, NAME("text"), 1, true, PTR(a->sizes), I64_SMALL(2), ERR))
ROW(tl_tokenizer_bytes, QUIET, (TOKENIZER, I64(1), PTR_MAYBE(a->sizes_read)))
ROW(tl_tokenizer_find, QUIET, (TOKENIZER, NAME("<|begin|>")))
ROW(tl_schedule_lr, QUIET, (schedule(a), DBL(1), I64(3)))
ROW(tl_sgd_new_with, SAYS, (MODEL, optimizer(a)))
ROW(tl_adam_new_with, SAYS, (MODEL, optimizer(a)))
ROW(tl_adamw_new_with, SAYS, (MODEL, optimizer(a)))
ROW(tl_opt_group, SAYS, (OPT, NAME("w*"), DBL(1), DBL(0)))
ROW(tl_step_at, SAYS, (OPT, AT))
ROW(tl_opt_steps, QUIET, (OPT))
ROW(tl_opt_lr, QUIET, (OPT))
ROW(tl_opt_grad_norm, QUIET, (OPT))
ROW(tl_checkpoint_save, SAYS, (MODEL, OPT_MAYBE, PATH(a->fresh), notes(a), COUNT(1)))
ROW(tl_checkpoint_save_tape, SAYS, (T, OPT_MAYBE, PATH(a->fresh), notes(a), COUNT(1)))
ROW(tl_checkpoint_writable, SAYS, (MODEL, PATH(a->fresh)))
ROW(tl_checkpoint_load, SAYS,
    (MODEL, OPT_MAYBE, PATH(a->checkpoint), keys(a), PTR(a->values), COUNT(1)))
ROW(tl_checkpoint_load_tape, SAYS,
    (T_CLEAR, OPT_MAYBE, PATH(a->checkpoint), keys(a), PTR(a->values), COUNT(1)))
ROW(tl_checkpoint_notes, SAYS, (MODEL, PATH(a->checkpoint), keys(a), PTR(a->values), COUNT(1)))

ROW(tl_loader_new_at, LAYER,
    (AT, NAME("n"), numbers_of(a), COUNT(1), (tl_loader_options){.batch = I64(1)}))
ROW(tl_loader_next_at, LAYER, (AT, PTR(loader(a)), I64(1), OUT(a->out)))

/* ---- files ---- */
ROW(tl_arrays_open_with, SAYS,
    (PTR(a->numbers), PATH(TL_ROOT "/tests/corpus/f4.npy"), ERR, (tl_arrays_options){0}))
ROW(tl_arrays_open_memory, SAYS,
    (PTR(a->numbers), PTR("\0\0\10\1\0\0\0\2ab"), BYTES(10), NAME_MAYBE("memory"), ERR,
     (tl_arrays_options){0}))
ROW(tl_arrays_save, SAYS, (PATH(a->fresh), NULL, numbers_of(a), COUNT(1), ERR))
ROW(tl_arrays_close, QUIET, (PTR_NULL))
ROW(tl_arrays_count, QUIET, (NUMBERS_OPEN))
ROW(tl_arrays_at, QUIET, (NUMBERS_OPEN, INT(0)))
ROW(tl_arrays_name, QUIET, (NUMBERS_OPEN, INT(0)))
ROW(tl_arrays_find, QUIET, (NUMBERS_OPEN, NAME("w")))
ROW(tl_face, QUIET, ())
ROW(tl_face_size, QUIET, (NAME("tl_shape")))
ROW(tl_callback_run, QUIET, (T, INS(F, F), COUNT(2), PTR_NULL))
ROW(tl_st_write, SAYS, (PATH(a->fresh), entries(a), COUNT(1), metas(a), COUNT(1), ERR))
ROW(tl_st_open, SAYS, (PTR(a->files), PATH(a->saved), ERR))
ROW(tl_st_open_memory, SAYS,
    (PTR(a->files), PTR("\10\0\0\0\0\0\0\0{}      "), BYTES(16), NAME_MAYBE("memory"), ERR))
ROW(tl_st_close, QUIET, (PTR_NULL))
ROW(tl_st_name_check, SAYS, (NAME("x"), ERR))
ROW(tl_st_header_limit, QUIET, (SIZE(0)))
ROW(tl_st_count, QUIET, (FILE_OPEN))
ROW(tl_st_at, QUIET, (FILE_OPEN, INT(0)))
ROW(tl_st_find, QUIET, (FILE_OPEN, NAME("w")))
ROW(tl_st_read, SAYS, (FILE_OPEN, INT(0), room(a), ERR))
ROW(tl_st_meta_get, QUIET, (FILE_OPEN, NAME("k")))
ROW(tl_st_meta_count, QUIET, (FILE_OPEN))
ROW(tl_st_meta_at, QUIET, (FILE_OPEN, INT(0)))

ROW(tl_reader_open, SAYS, (PTR(a->reader), PATH(a->saved), ERR))
ROW(tl_reader_read, NOT, "a reader is what tl_reader_open has made")
ROW(tl_reader_close, NOT, "a reader is what tl_reader_open has made")
ROW(tl_file_read, SAYS, (PATH(a->saved), SIZE(4096), PTR(a->bytes), PTR(a->sizes_read), ERR))
ROW(tl_file_writable, SAYS, (PATH(a->fresh), ERR))
ROW(tl_writer_begin, SAYS, (PTR(a->writer), PATH(a->fresh), ERR))
ROW(tl_writer_append, NOT, "a writer is what tl_writer_begin has made")
ROW(tl_writer_commit, NOT, "a writer is what tl_writer_begin has made")
ROW(tl_writer_abort, QUIET, (PTR_NULL))

/* ---- orders of addition ---- */
ROW(tl_order_new, QUIET, (I64(4)))
ROW(tl_order_free, QUIET, (PTR_NULL))
ROW(tl_order_add, QUIET, (ORDER, PTR(a->sizes), COUNT(2)))
ROW(tl_order_child, QUIET, (ORDER, I64(0), I64(0)))
ROW(tl_order_size, QUIET, (ORDER, I64(0)))
ROW(tl_order_root, QUIET, (ORDER))
ROW(tl_order_meeting, QUIET, (ORDER, I64(0), I64(1)))
ROW(tl_order_same, QUIET, (ORDER, ORDER))
ROW(tl_order_format, SAYS, (PTR(a->text), SIZE(sizeof a->text), ORDER_WHOLE, ERR))
ROW(tl_order_print, SAYS, (STREAM, ORDER_WHOLE, ERR))
ROW(tl_reveal_order, SAYS,
    (FUNCTION(sums), NULL, DTYPE_BAD(TL_F32), I64_SMALL(4), PTR(a->orders), ERR))

/* ---- random numbers, functions, threads, status: no objects, nobody to tell ---- */
ROW(tl_rng_stream, QUIET, (1, NAME("x")))
ROW(tl_philox4x32, NOT, "arrays of fixed size on the caller's stack")
ROW(tl_rng_u32, QUIET, ((tl_rng_key){{0}, TL_OK}, SIZE(1), SIZE(1)))
ROW(tl_rng_u64, QUIET, ((tl_rng_key){{0}, TL_OK}, SIZE(1), SIZE(1)))
ROW(tl_rng_uniform32, QUIET, ((tl_rng_key){{0}, TL_OK}, SIZE(1), SIZE(1)))
ROW(tl_rng_uniform64, QUIET, ((tl_rng_key){{0}, TL_OK}, SIZE(1), SIZE(1)))
ROW(tl_rng_below, QUIET, ((tl_rng_key){{0}, TL_OK}, SIZE(1), SIZE(1), SIZE(5)))
ROW(tl_rng_normal64, QUIET, ((tl_rng_key){{0}, TL_OK}, SIZE(1), SIZE(1)))
ROW(tl_rng_fill_uniform32, QUIET, (PTR(a->floats), 8, (tl_rng_key){{0}, TL_OK}, SIZE(1), SIZE(1)))
ROW(tl_rng_fill_uniform64, QUIET, (PTR(a->doubles), 8, (tl_rng_key){{0}, TL_OK}, SIZE(1), SIZE(1)))
ROW(tl_rng_fill_normal64, QUIET, (PTR(a->doubles), 8, (tl_rng_key){{0}, TL_OK}, SIZE(1), SIZE(1)))
ROW(tl_f64_exp, QUIET, (DBL(1)))
ROW(tl_f64_log, QUIET, (DBL(1)))
ROW(tl_f64_sin, QUIET, (DBL(1)))
ROW(tl_f64_cos, QUIET, (DBL(1)))
ROW(tl_threads_set, QUIET, (INT(1)))
ROW(tl_threads, QUIET, ())
ROW(tl_parallel_for, QUIET, (I64_SMALL(4), I64(1), FUNCTION(range), NULL))
ROW(tl_parallel_width, QUIET, (I64(4), I64(1)))
ROW(tl_fpenv_enter, NOT, "a pair that brackets, without arguments to be wrong")
ROW(tl_fpenv_leave, NOT, "a pair that brackets, without arguments to be wrong")
ROW(tl_textenv_enter, NOT, "a pair that brackets, without arguments to be wrong")
ROW(tl_textenv_leave, NOT, "a pair that brackets, without arguments to be wrong")
ROW(tl_status_name, QUIET, (ENUM(TL_OK)))
ROW(tl_status_text, QUIET, (ENUM(TL_OK)))
ROW(tl_fail, QUIET, (ERR, ENUM(TL_EUSAGE), "%d", 1))
ROW(tl_vfail, NOT, "tl_fail calls it")
ROW(tl_err_clear, QUIET, (ERR))

/* ---- memory and arrays: what kernels are made of ---- */
ROW(tl_c_type_check, SAYS, (PTR_MAYBE("float"), DTYPE_SOME(TL_F32), ERR))
ROW(tl_allocator, QUIET, ())
ROW(tl_dtype_name, QUIET, (DTYPE(TL_F32)))
ROW(tl_dtype_size, QUIET, (DTYPE(TL_F32)))
ROW(tl_dtype_is_float, QUIET, (DTYPE(TL_F32)))
ROW(tl_dtype_compute, QUIET, (DTYPE(TL_F32)))
ROW(tl_shape_check, SAYS, (shape_pointer(a), DTYPE(TL_F32), ERR))
ROW(tl_array_make, QUIET, (DTYPE(TL_F32), shape_pointer(a), PTR_MAYBE(a->floats)))
ROW(tl_shape_count, QUIET, (shape_pointer(a)))
ROW(tl_shape_equal, QUIET, (shape_pointer(a), shape_pointer(a)))
ROW(tl_shape_text, QUIET, (a->text, shape_pointer(a)))
ROW(tl_array_expand, NOT, "an array and a shape that broadcast, which the caller has checked")
ROW(tl_array_shape, NOT, "an array is what the caller has made")
ROW(tl_array_count, NOT, "an array is what the caller has made")
ROW(tl_array_same_shape, NOT, "an array is what the caller has made")
ROW(tl_array_contiguous, NOT, "an array is what the caller has made")
ROW(tl_array_set_contiguous, NOT, "an array is what the caller has made")
ROW(tl_array_at, NOT, "an array is what the caller has made")
ROW(tl_array_get, NOT, "an array is what the caller has made")
ROW(tl_array_put, NOT, "an array is what the caller has made")
ROW(tl_element_get, NOT, "an array is what the caller has made")
ROW(tl_element_put, NOT, "an array is what the caller has made")
ROW(tl_element_put_i64, NOT, "an array is what the caller has made")
ROW(tl_array_shape_text, NOT, "an array is what the caller has made")
ROW(tl_shape_broadcast, NOT, "an array is what the caller has made")
ROW(tl_array_collapse, NOT, "an array is what the caller has made")
ROW(tl_array_reshape_view, NOT, "an array is what the caller has made")
ROW(tl_array_copy, NOT, "an array is what the caller has made")
#undef ROW
